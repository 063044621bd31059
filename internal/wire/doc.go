// Package wire is version 1 of memplan's public formats: how a job is read
// from JSON, YAML, a form or a URL, how it is written, and the shapes of
// answers, runs and checks.
//
// One schema, job.schema.json, serves every notation. A reader for each turns
// text into a tree of nodes; synonyms of other tools are moved to the keys they
// mean; the compiled schema then checks and normalises the tree; what is left
// becomes a spec.Job:
//
//	JSON  readjson.go ─┐             synonym.go      check.go
//	YAML  readyaml.go ─┼─▶ node ──▶ rename keys ──▶ rule by rule ──▶ spec.Job
//	form  values.go   ─┘             alias.go        spellings.go
//
// Nothing is filled in here: a key that was not given stays unset, and the
// estimator's Resolve gives it the default of its trainer and versions. Names
// of models and cards are not looked up either; the planner does.
//
// A wrong input gives one *Invalid with every wrong field, each with its path,
// what was there, what may stand there, the nearest right value and, for texts
// with lines, its place. Settings that contradict each other are among them
// (contradiction.go); settings with nothing to act on are not wrong, and
// Warnings lists them.
//
// Fields, Aliases and Synonyms are the tables from which forms, help texts and
// documentation are made.
package wire
