package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// cacheKey is the SHA-256 of a job's canonical JSON: Go's own, in which struct
// fields have one order and map keys are sorted.
type cacheKey [sha256.Size]byte

// answerKey is what an answer in memory is found by: the job, and the
// calibrations it was answered by.
type answerKey struct {
	job          cacheKey
	calibrations string
}

// keyOf returns a job's key. It fails on a value that JSON has no form for,
// which a decoded job cannot hold.
func keyOf(job spec.Job) (cacheKey, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return cacheKey{}, fault.Wrap(fault.Invalid, "planner: encode job", err)
	}
	return sha256.Sum256(text), nil
}

// String is the key as records keep it.
func (k cacheKey) String() string { return hex.EncodeToString(k[:]) }

func (p *Planner) cached(k answerKey) (*estimator.Estimate, bool) {
	if p.answers == nil {
		return nil, false
	}
	return p.answers.Get(k)
}

func (p *Planner) remember(k answerKey, est *estimator.Estimate) {
	if p.answers != nil {
		p.answers.Add(k, est)
	}
}
