package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// Run follows the log into the index, if there is one, and runs the services until ctx ends or one
// fails, then stops them in reverse order, each given what is left of NGIT_SHUTDOWN_WAIT: put those
// first that others need to finish their work. The error is the first: why a service failed, or
// else what went wrong as they stopped; those that follow from it are logged.
func (n *Node) Run(ctx context.Context, services ...Service) error {
	return n.run(ctx, nil, make(chan *running, 1), services)
}

// run is Run, with services that were started already and that tell failed when they fail.
func (n *Node) run(ctx context.Context, started []*running, failed chan *running, services []Service) error {
	var err error
	if n.Index != nil {
		n.Ready.Add("index", n.caughtUp())
	}
	if len(started) > 0 { // [Observation]
		health := http.NewServeMux()
		obs.Mount(health, n.Ready, nil)
		n.AtFront = health
	}
	n.alone = alone(services)
	services = append(n.events(services), services...)

	for _, s := range services {
		started = append(started, n.start(ctx, s, failed))
	}
	select {
	case <-ctx.Done():
	case r := <-failed:
		err = r.err
	case err = <-n.Bus.Lost():
	case err = <-n.indexFailed():
	}
	return n.stopAll(started, err)
}

// stopAll stops services in reverse order. err is why; what goes wrong meanwhile is the error if
// there is none yet.
func (n *Node) stopAll(started []*running, err error) error {
	deadline := time.Now().Add(n.Settings.ShutdownWait)
	for i := len(started) - 1; i >= 0; i-- {
		stopErr := started[i].stop(deadline)
		switch {
		case stopErr == nil || stopErr == err:
		case err == nil:
			err = stopErr
		default:
			n.Log.Warn("service did not stop well", "service", started[i].name, "error", stopErr)
		}
		if errors.Is(stopErr, errOverdue) {
			n.overdue.Store(true)
		}
	}
	return err
}

// caughtUp is the check whether the index has read what the log held at the first look.
func (n *Node) caughtUp() func() error {
	var mu sync.Mutex
	var known bool
	var head uint64
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if !known {
			ctx, cancel := context.WithTimeout(context.Background(), lagWait)
			defer cancel()
			last, err := bus.LastSeq(ctx, n.Bus.JS, proto.StreamEvents)
			if err != nil {
				return err
			}
			head, known = last, true
		}
		return caughtUp(n.Index.Seq(), head)
	}
}

// alone reports whether there is but one service that has work to end.
func alone(services []Service) bool {
	n := 0
	for _, s := range services {
		if s.Name != Observation.Name {
			n++
		}
	}
	return n == 1
}

// caughtUp reports whether the index has read what the log held at the start.
func caughtUp(seq, head uint64) error {
	if seq < head {
		return fmt.Errorf("reading the log: at %d of %d", seq, head)
	}
	return nil
}

var (
	errEnded   = errors.New("ended by itself")
	errOverdue = errors.New("still running at the end of the graceful stop")
)

// running is a service that was started.
type running struct {
	name   string
	named  func(error) error // says whose an error is
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// namer puts a service's name before its errors, unless the process is named for it: that name
// stands there already, before all that the process says at its end.
func (n *Node) namer(service string) func(error) error {
	if service == n.process {
		return func(err error) error { return err }
	}
	return func(err error) error { return fmt.Errorf("%s: %w", service, err) }
}

// start runs s in a context of its own, so that a stop reaches the services one after the other and
// not all at once.
func (n *Node) start(ctx context.Context, s Service, failed chan<- *running) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{name: s.Name, named: n.namer(s.Name), cancel: cancel, done: make(chan struct{})}
	scoped := *n
	scoped.Log = n.Log.With("service", s.Name)
	go func() {
		err := s.Run(own, &scoped)
		asked := own.Err() != nil
		switch {
		case err != nil && !(asked && errors.Is(err, context.Canceled)):
			r.err = r.named(err)
		case !asked:
			r.err = r.named(errEnded)
		}
		close(r.done)
		if !asked {
			select {
			case failed <- r:
			default: // another was first
			}
		}
	}()
	return r
}

// stop ends the service and waits for it until the deadline. It gives what went wrong in the
// service, then or before.
func (r *running) stop(deadline time.Time) error {
	r.cancel()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-timer.C:
		return r.named(errOverdue)
	}
}
