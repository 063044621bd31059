// Package archtest keeps the house in order: its one test says which package
// may import which, and who alone may use which library. It has no code.
package archtest
