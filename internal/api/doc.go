// Package api is the REST door: version 1 of the public formats over chi and
// huma, under /api/v1, with its OpenAPI 3.1 document, problem+json for every
// failure, health, readiness and metrics. It decodes with package wire, asks
// the planner, and maps kinds of failure to HTTP statuses in one table. It
// holds no rule about jobs or memory of its own.
package api
