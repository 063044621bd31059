// Package hub fetches a model's config.json from the hub that the operator
// configured, and from nowhere else: with a limit on time and size, and without
// following a redirect to another host. It implements planner.Hub.
package hub
