package microbench

import (
	"os/exec"
	"syscall"
)

// inGroup makes a command the head of a group that is killed whole, and that
// the kernel kills when memplan dies, even by kill -9: no probe outlives it on a
// card.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
