// Package store keeps estimates in Postgres or SQLite. It is planner.Store over
// database/sql, with one SQL text for both engines; only the schema and the way
// of opening differ.
//
// Transactions begin in exported methods only. What runs inside one takes the
// *sql.Tx and never touches the pool: with SQLite that would deadlock.
// The conformance suite in storetest runs on both engines.
package store
