package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"

	"github.com/alecthomas/kong"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/obs"
	"memplan/internal/planner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], surroundings{os.Getenv, os.Stdin, os.Stdout, os.Stderr, nil})
	stop()
	os.Exit(code)
}

// surroundings is what the command sees of the world.
type surroundings struct {
	getenv func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	engine planner.Engine // nil: the estimator
}

// command is the command line.
type command struct {
	Server  string           `help:"Ask the memplan service at this address instead of answering here (MEMPLAN_SERVER)." default:"${server}" placeholder:"URL"`
	JSON    bool             `name:"json" help:"Print the answer as JSON, as REST gives it."`
	Version kong.VersionFlag `help:"Print the version and stop."`

	Estimate  estimateCommand  `cmd:"" help:"What a job needs at its peak, and whether it fits its target."`
	Check     checkCommand     `cmd:"" help:"Whether a job may start: the exit code says it."`
	Fits      fitsCommand      `cmd:"" help:"The largest micro batch of a job that fits each card."`
	Colocate  colocateCommand  `cmd:"" help:"Whether jobs fit on one card together, and which pairs do."`
	Recommend recommendCommand `cmd:"" help:"What to change in a job: to make it fit, or fast, or large."`
	Trace     traceCommand     `cmd:"" help:"Every allocation and free of a job, for memory_viz, Chrome or scripts."`
	Record    recordCommand    `cmd:"" help:"What a job really took, beside its prediction; a server keeps it for calibration."`
	Import    importCommand    `cmd:"" help:"A job from another tool's file: axolotl, TrainingArguments, DeepSpeed and others."`
	Export    exportCommand    `cmd:"" help:"A job as another tool's file."`
	Benchmark benchmarkCommand `cmd:"" help:"Measure what a GPU of this host takes, and lay training steps beside their prediction."`
	Models    modelsCommand    `cmd:"" help:"Models known by id."`
	GPUs      gpusCommand      `cmd:"" name:"gpus" help:"Cards known by name."`
}

const description = `How much GPU memory a training job needs at its peak, before it is submitted.

Exit codes: 0 fits, and tight with a warning on standard error (check --strict makes tight 1); 1 exceeds; 2 invalid input; 3 server unreachable; 4 refused by policy. Only check turns its verdict into an exit code; estimate and fits exit with 0 once they have an answer.`

// session is one run of the command.
type session struct {
	surroundings
	ctx  context.Context
	back backend
	json bool
	code int // to exit with when no error says otherwise
}

// run is the command, from its arguments to its exit code.
func run(ctx context.Context, args []string, around surroundings) int {
	var c command
	stopped := false
	parser, err := kong.New(&c,
		kong.Name("memplan"), kong.Description(description), kong.UsageOnError(),
		kong.Writers(around.stdout, around.stderr), kong.Exit(func(int) { stopped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{
			"version": "memplan " + obs.BuildVersion(), "server": around.getenv("MEMPLAN_SERVER"),
			"python": cmp.Or(around.getenv("MEMPLAN_PYTHON"), "python3"),
		})
	if err != nil {
		return report(around.stderr, err)
	}
	parsed, err := parser.Parse(args)
	if stopped {
		return exitFits
	}
	if err != nil {
		return report(around.stderr, usage(err))
	}
	s := &session{surroundings: around, ctx: ctx, json: c.JSON}
	if s.back, err = open(c.Server, around.engine); err == nil {
		err = parsed.Run(s)
	}
	if err != nil {
		return report(around.stderr, err)
	}
	return s.code
}

// usage classifies a wrong command line.
func usage(err error) error {
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		return fault.New(fault.Invalid, "%v; memplan --help explains", err)
	}
	return err
}

// open returns the server's interface, or a planner in this process.
func open(server string, engine planner.Engine) (backend, error) {
	if server != "" {
		return newRemote(server), nil
	}
	tables, err := catalog.Open()
	if err != nil {
		return nil, err
	}
	return local{planner.New(planner.Config{Catalog: tables, Engine: engine})}, nil
}

// printJSON writes an answer as REST would, indented.
func (s *session) printJSON(v any) error {
	enc := json.NewEncoder(s.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
