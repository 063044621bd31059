//go:build !linux

package pgtest

import (
	"os/exec"
	"syscall"
)

// attributes has nothing to say on systems without a signal at the parent's
// death.
func attributes() *syscall.SysProcAttr { return nil }

func giveAway(string) error { return nil }

// start runs a process and closes the channel when it has ended.
func start(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	done := make(chan struct{})
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	return done, nil
}
