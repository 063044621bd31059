// Package pgtest starts a throw-away Postgres for tests: reached through a Unix
// socket only, without the safety of writing to disk, and ended with the test.
// Postgres refuses to run as root, so a test that does runs it as another user.
package pgtest
