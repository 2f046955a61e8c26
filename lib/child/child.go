// Package child starts processes that end with this one, however this one ends. It does not wait for
// them, and does not end what they start themselves.
package child

import (
	"os/exec"
	"runtime"
	"sync"
)

// starts has one thread that lasts as long as this process. Linux ends a child with the thread that
// started it (PR_SET_PDEATHSIG), and Go may end others of its threads.
var starts = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// Start is cmd.Start for a process that the kernel kills when this one ends.
func Start(cmd *exec.Cmd) error {
	endsWithParent(cmd)
	err := make(chan error, 1)
	starts() <- func() { err <- cmd.Start() }
	return <-err
}
