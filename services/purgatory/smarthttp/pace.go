package smarthttp

import (
	"errors"
	"os"
	"time"
)

// errSlow is a client that sends or takes too slowly.
var errSlow = errors.New("slower than the lowest rate")

// pace is how far a client is ahead of the lowest rate. It may fall behind by the stall, and each
// byte buys it time; the time in which nobody waits for it does not count.
type pace struct {
	rate  int64 // bytes a second
	stall time.Duration
	end   time.Time // of the whole transfer

	credit time.Duration
	began  time.Time // of the wait that is under way
}

// pace begins a transfer.
func (o Options) pace() *pace {
	return &pace{rate: o.MinRate, stall: o.Stall, end: time.Now().Add(o.TransferTime), credit: o.Stall}
}

// wait begins to wait until the client has taken n bytes, or for any number of bytes, n being 0. It
// returns until when.
func (p *pace) wait(n int) (deadline time.Time) {
	p.began = time.Now()
	deadline = p.began.Add(p.credit + p.time(n))
	if p.end.Before(deadline) {
		return p.end
	}
	return deadline
}

// time is how long n bytes may take.
func (p *pace) time(n int) time.Duration {
	return time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
}

// moved ends the wait: n bytes have come or gone. err is how, and is errSlow where the deadline has
// passed.
func (p *pace) moved(n int, err error) error {
	p.credit += p.time(n) - time.Since(p.began)
	p.credit = min(p.credit, p.stall)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return err
}
