package claim

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bootClock is an alarm by the clock of the machine since it was started. That clock counts the
// time in which the machine was suspended, and the alarm rings as soon as the machine goes on.
type bootClock struct{ file *os.File }

func newAlarm(ring func()) (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer that counts suspended time: %w", err)
	}
	c := bootClock{os.NewFile(uintptr(fd), "lease timer")}
	go func() {
		var times [8]byte
		for {
			if _, err := c.file.Read(times[:]); err != nil {
				return // closed
			}
			ring()
		}
	}()
	return c, nil
}

// now cannot fail on a system that has made the timer.
func (bootClock) now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// set fails only after close, when no lease runs.
func (c bootClock) set(at time.Duration) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 1))}
	_ = raw.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
}

func (c bootClock) close() { _ = c.file.Close() }
