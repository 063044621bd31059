// Package obs is what an operator sees of a running memplan: one log line per
// request with an id that a user can quote, and metrics in a registry of its
// own. It decides nothing; no other package writes to the log's format or to
// the default metrics registry.
package obs
