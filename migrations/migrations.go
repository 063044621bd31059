// Package migrations embeds the schema of the database, one numbered file a
// change, for Postgres and for SQLite. A file that was released is never
// edited: a change is a new file in both folders.
package migrations

import "embed"

// Files holds postgres/NNNNN_name.sql and sqlite/NNNNN_name.sql, in the format
// of goose.
//
//go:embed postgres/*.sql sqlite/*.sql
var Files embed.FS
