// Package auth guards the doors: security headers, the refusal of browser
// writes from other sites, and rate limits. It knows nothing of jobs, and it
// answers a refusal through the handler it is given, so that every refusal has
// the door's own form.
package auth
