// Command memplan answers for one job on the command line, offline or through
// a server: what it needs, whether it may start, and how large its micro batch
// may be on which card. It reads the same jobs as every other door, in JSON or
// YAML, from a file or from standard input.
package main
