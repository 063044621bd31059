package pgtest

import (
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
)

// attributes makes a child end with its parent, and run as another user when
// this is root.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Credential: unprivileged()}
}

// unprivileged is the user postgres where there is one, otherwise nobody; nil
// for a test that does not run as root.
func unprivileged() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32) // numbers on this system
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return nil
}

// giveAway makes the server's user the owner of a folder.
func giveAway(dir string) error {
	c := unprivileged()
	if c == nil {
		return nil
	}
	return os.Chown(dir, int(c.Uid), int(c.Gid))
}

// start runs a process and closes the channel when it has ended. The signal at
// the parent's death is really one at the death of the thread that started it,
// so that thread waits for the process and does nothing else.
func start(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return done, <-started
}
