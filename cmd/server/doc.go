// Command server is memplan's service: the pages, the REST interface and the
// store behind them, in one process. It reads its configuration, opens the
// store, starts to listen, and stops in order. Every setting is a flag and an
// environment variable; without any it listens on the loopback address and
// keeps its estimates in an SQLite file in the user's data directory.
package main
