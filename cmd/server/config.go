package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"

	"github.com/alecthomas/kong"
)

// config is every setting of the service.
type config struct {
	Addr      string           `help:"Address to listen on (MEMPLAN_ADDR)." default:"${addr}" placeholder:"HOST:PORT"`
	Database  string           `name:"database-url" help:"postgres://… to keep estimates there (DATABASE_URL). Without it, memplan.db in the data directory." default:"${database}" placeholder:"URL"`
	Data      string           `help:"Data directory (MEMPLAN_DATA)." default:"${data}" placeholder:"DIR"`
	Hub       string           `name:"hf-endpoint" help:"Hub to fetch a config.json from when a model is not in the catalogue (HF_ENDPOINT), such as https://huggingface.co; HF_TOKEN holds a token for it. Without it nothing is fetched." default:"${hub}" placeholder:"URL"`
	HubToken  string           `kong:"-"` // HF_TOKEN, for models the hub keeps private; no flag, for others see those
	LogFormat string           `help:"Format of the log on standard error: text or json (MEMPLAN_LOG_FORMAT)." enum:"text,json" default:"${log}"`
	PerMinute int              `name:"requests-per-minute" help:"REST requests allowed per minute from one address; 0 allows all. The default is 0 on a loopback address and 1200 elsewhere." default:"-1" placeholder:"N"`
	Worker    bool             `help:"Serve no pages: only run benchmarks on this host's GPUs, from the shared database (MEMPLAN_WORKER=1). Without it the service does both."`
	Python    string           `help:"Python with PyTorch that probes run in (MEMPLAN_PYTHON)." default:"${python}" placeholder:"FILE"`
	Check     bool             `help:"Ask the service at --addr whether it is ready, and stop: a health check."`
	Version   kong.VersionFlag `help:"Print the version and stop."`
}

// errStopped is not a failure: help or the version was asked for, and printed.
var errStopped = errors.New("printed what was asked for")

// configure reads flags, and the environment where a flag is not given.
func configure(args []string, getenv func(string) string, version string, stdout, stderr io.Writer) (config, error) {
	c := config{HubToken: getenv("HF_TOKEN")}
	stopped := false
	parser, err := kong.New(&c,
		kong.Name("server"),
		kong.Description("The memplan service: how much GPU memory a training job needs, in the browser and over REST."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { stopped = true }),
		kong.Vars{
			"version":  "memplan " + version,
			"addr":     cmp.Or(getenv("MEMPLAN_ADDR"), "127.0.0.1:8080"),
			"database": getenv("DATABASE_URL"),
			"data":     cmp.Or(getenv("MEMPLAN_DATA"), userData(getenv)),
			"hub":      getenv("HF_ENDPOINT"),
			"python":   cmp.Or(getenv("MEMPLAN_PYTHON"), "python3"),
			"log":      cmp.Or(getenv("MEMPLAN_LOG_FORMAT"), "text"),
		})
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	_, err = parser.Parse(args)
	switch {
	case stopped:
		return c, errStopped
	case err != nil:
		return c, err
	case c.Database == "" && c.Data == "" && !c.Check:
		return c, errors.New("no home directory to keep memplan.db in: give --data or --database-url")
	}
	c.Worker = c.Worker || getenv("MEMPLAN_WORKER") == "1"
	if c.PerMinute < 0 {
		c.PerMinute = requestsPerMinute(c.Addr)
	}
	return c, nil
}

// database is where estimates are kept, as the store reads it.
func (c config) database() string {
	return cmp.Or(c.Database, filepath.Join(c.Data, "memplan.db"))
}

// userData is the user's data directory for memplan, or "" without a home.
func userData(getenv func(string) string) string {
	if dir := getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "memplan")
	}
	if home := cmp.Or(getenv("HOME"), getenv("USERPROFILE")); home != "" {
		return filepath.Join(home, ".local", "share", "memplan")
	}
	return ""
}

// requestsPerMinute is the limit unless one is given: none for one's own
// machine, and otherwise what no person and few programs reach.
func requestsPerMinute(addr string) int {
	host, _, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return 0
	}
	return 1200
}
