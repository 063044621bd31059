// Package planner is what memplan does for its users: estimate a job, keep an
// estimate, check a job before it is submitted, and find the largest micro
// batch that fits each card. It looks up what the estimator must not: models
// and cards in the catalogue or on a hub, and the coefficients in force.
//
// The interfaces at the foot of the house, Store and Hub, are declared here and
// implemented in packages that only the commands see. Both may be absent: a
// planner without them still estimates.
package planner
