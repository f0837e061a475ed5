package consultest

import (
	"os/exec"
	"syscall"
)

// dieWithParent lets the kernel kill the process when the thread that started it
// ends, so that a killed or panicking test leaves no agent behind. Only the
// thread counts: the caller must stay locked to it until the process has ended.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
