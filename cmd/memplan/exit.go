package main

import (
	"errors"
	"fmt"
	"io"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// The exit codes of the command, a part of the public format.
const (
	exitFits        = 0 // and tight, with a warning, unless --strict
	exitExceeds     = 1 // and tight under --strict
	exitInvalid     = 2
	exitUnreachable = 3
	exitRefused     = 4
	exitDefect      = 70 // of memplan itself
)

// exitCodes maps the kinds of failure to exit codes: the one place that does.
var exitCodes = [...]int{
	fault.Internal:    exitDefect,
	fault.Invalid:     exitInvalid,
	fault.NotFound:    exitInvalid,
	fault.Conflict:    exitInvalid,
	fault.Forbidden:   exitRefused,
	fault.Unavailable: exitUnreachable,
	fault.TooLarge:    exitInvalid,
}

// exitOf is the exit code of a check.
func exitOf(c planner.Check, strict bool) int {
	switch {
	case c.Verdict == estimator.Exceeds, c.Verdict == estimator.Tight && strict:
		return exitExceeds
	case c.Decision == planner.Deny:
		return exitRefused
	}
	return exitFits
}

// report prints an error, a line for each wrong field, and returns its code.
func report(stderr io.Writer, err error) int {
	kind := fault.KindOf(err)
	fields := fault.FieldsOf(err)
	var read *wire.Invalid
	errors.As(err, &read)
	if len(fields) == 0 {
		fmt.Fprintf(stderr, "memplan: %s\n", text(err))
		return exitCodes[kind]
	}
	fmt.Fprintf(stderr, "memplan: the job is not valid (%d)\n", len(fields))
	for i, f := range fields {
		place := ""
		if read != nil && read.Location(i) != "" {
			place = " (" + read.Location(i) + ")"
		}
		fmt.Fprintf(stderr, "  %s%s\n", f, place)
	}
	return exitCodes[kind]
}

// text is what a user reads of an error. On one's own machine nothing is
// hidden: the cause follows.
func text(err error) string {
	var classified *fault.Error
	if errors.As(err, &classified) && classified.Text != "" && classified.Err == nil {
		return classified.Text
	}
	return err.Error()
}
