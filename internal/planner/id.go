package planner

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// What the ids of kept things begin with.
const (
	idPrefix        = "est_" // an estimate
	benchmarkPrefix = "bm_"
)

// idLength is the length of an id after its prefix: 80 random bits in base 32.
const idLength = 16

// newID returns est_ and 16 lower-case base-32 characters that nobody can guess.
func newID() string { return newIDOf(idPrefix) }

// newIDOf is newID with another prefix.
func newIDOf(prefix string) string {
	var bits [idLength * 5 / 8]byte
	_, _ = rand.Read(bits[:]) // never fails: see crypto/rand
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(bits[:]))
}

// validID reports whether a string has the form of an id, so that nothing else
// reaches the store.
func validID(id string) bool { return validIDOf(idPrefix, id) }

// validIDOf is validID for another prefix.
func validIDOf(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	if !ok || len(rest) != idLength {
		return false
	}
	return strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") == ""
}
