// Package spec holds the estimator's own words: the Job a person asks about,
// the Device it is meant for, the Coefficients that calibration supplies, and
// the Versions of the libraries whose rules apply.
//
// The Job has exactly the keys of the public format, version 1; reading it from
// JSON, YAML, a form or a URL, with synonyms and error messages, is the duty of
// package wire. A Job here may still have unset fields (their zero value, or a
// nil pointer where zero means something); the estimator's Resolve fills them
// from the named trainer and library versions and says which it filled.
package spec
