// Command accuracy compares the estimator with measured jobs.
//
//	accuracy CORPUS            print the errors by source, tag and metric
//	accuracy diff JOB TRACE    compare a job's allocation events with a trace
//
// A trace is what the no-op-driver oracle writes with --trace FILE --trace-all:
// every allocation and free of the real framework, in order. A total can be
// right by two wrongs; a sequence of events cannot.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "diff":
		return diff(os.Stdout, args[1], args[2])
	}
	return fmt.Errorf("usage: accuracy CORPUS | accuracy diff JOB TRACE")
}
