// Command accuracy compares the estimator with measured jobs.
//
//	accuracy [-tag TAG] CORPUS   the errors by source, tag and metric
//	accuracy diff JOB TRACE [STAGE]
//	                             a job's allocation events beside a trace of a
//	                             rank of that stage of the pipeline
//	accuracy record JOB TRACE NAME
//	                             the trace as a test: NAME.job.json, NAME.events.gz
//
// CORPUS is a folder of files *.jsonl with one measured job a line (the format
// of a run). A trace is what the no-op-driver oracle writes with --trace FILE
// --trace-all: every allocation and free of the real framework, in order. A
// total can be right by two wrongs; a sequence of events cannot.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case (len(args) == 3 || len(args) == 4) && args[0] == "diff":
		stage := 0
		if len(args) == 4 {
			n, err := strconv.Atoi(args[3])
			if err != nil {
				return fmt.Errorf("stage %q: a number, counted from 0", args[3])
			}
			stage = n
		}
		return diff(os.Stdout, args[1], args[2], stage)
	case len(args) == 4 && args[0] == "record":
		return record(args[1], args[2], args[3])
	}
	flags := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	tag := flags.String("tag", "", "only rows with this tag, such as core")
	rows := flags.Bool("rows", false, "print every row")
	speed := flags.Bool("speed", false, "only the ranking by speed (throughput.jsonl)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("usage: accuracy [-tag TAG] [-rows] CORPUS, accuracy diff JOB TRACE [STAGE], or accuracy record JOB TRACE NAME")
	}
	if !*speed {
		if err := report(os.Stdout, flags.Arg(0), *tag, *rows); err != nil {
			return err
		}
	}
	if *tag != "" {
		return nil
	}
	return rankings(os.Stdout, flags.Arg(0), *rows)
}
