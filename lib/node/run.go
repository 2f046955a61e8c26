package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// Serve opens a node and runs the services in it until SIGINT or SIGTERM, which stop them
// gracefully; a second signal ends the process at once. See [Open] for name and apart.
func Serve(name string, s config.Settings, apart bool, services ...Service) error {
	log, level, err := obs.NewLogger(os.Stderr, s.LogLevel, s.LogFormat)
	if err != nil {
		return err
	}
	paceGarbage(os.LookupEnv)
	ctx := untilSignal(s, log)
	n, err := openWithLevel(ctx, name, s, log, level, apart, services...)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began
		}
		return err
	}
	err = n.Run(ctx, services...)
	closed := n.closeInTime()
	if errors.Is(err, errRoom) {
		log.Info("the disk has room again: restarting", "closing", closed)
		return again()
	}
	if err == nil {
		err = closed
	}
	if err == nil && context.Cause(ctx) == errReload {
		return again()
	}
	return err
}

// errRoom ends the services of a process whose disk was full and has room again. It begins again,
// because the embedded NATS server writes nothing more to streams that it once could not write.
var errRoom = errors.New("the disk has room again")

// closeInTime closes the node. What takes longer than the rest of NGIT_SHUTDOWN_WAIT is named, and
// left to the end of the process.
func (n *Node) closeInTime() error {
	wait := n.Settings.ShutdownWait
	if !n.deadline.IsZero() {
		wait = time.Until(n.deadline)
	}
	n.closing.Store(new("the services"))
	err := within(max(wait, leastToClose), n.Close)
	if errors.Is(err, errHung) {
		return fmt.Errorf("the stop took longer than NGIT_SHUTDOWN_WAIT (%s): %s did not close", n.Settings.ShutdownWait,
			*n.closing.Load())
	}
	return err
}

var errHung = errors.New("it did not end in time")

// within calls a function, and returns its error, or errHung after a time.
func within(wait time.Duration, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(wait):
		return errHung
	}
}

// leastToClose is what closing the node has when the services have used up the time of the stop.
const leastToClose = 2 * time.Second

// errReload ends a process that is to begin again with the settings as they are now.
var errReload = errors.New("SIGHUP")

// untilSignal returns a context that ends with the first SIGINT or SIGTERM; the next one ends the
// process. SIGHUP ends it with [errReload], unless the settings are wrong now; a second one changes
// nothing.
func untilSignal(s config.Settings, log *slog.Logger) context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 4) // a stop right behind a SIGHUP is not lost
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for {
			var cause error
			if <-signals == syscall.SIGHUP {
				cause = errReload
				_, err := config.Process().Parse(os.Args[1:])
				if s.DatabaseBackend == "memory" {
					err = errors.New("with NGIT_DATABASE_BACKEND=memory everything would be lost")
				}
				if err != nil {
					log.Error("SIGHUP: the process goes on with its old settings", "error", err)
					continue
				}
				log.Info("SIGHUP: restarting with the new settings")
			}
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			end(cause)
			return
		}
	}()
	return ctx
}

// again makes this process begin again. It returns only an error. SIGHUP is ignored until the new
// program listens to it.
func again() error {
	signal.Ignore(syscall.SIGHUP)
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("begin again: %w", err)
}

// listen serves something beside the services until Close.
func (n *Node) listen(name, setting, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return ListenError(setting, address, err)
	}
	n.Announce(name, "http://"+listener.Addr().String())
	n.Log.Info("listening", "service", name, "address", listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Minute}
	n.servers = append(n.servers, server)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			n.Log.Error("serving has ended", "service", name, "error", err)
		}
	}()
	return nil
}

// ListenError is why the address of a setting cannot be listened on, in a sentence for the
// operator.
func ListenError(setting, address string, err error) error {
	reason := err.Error()
	if errors.Is(err, syscall.EADDRINUSE) {
		reason = "address already in use; stop what listens there, or choose another"
	} else if sys, ok := errors.AsType[*os.SyscallError](err); ok {
		reason = sys.Err.Error() + "; choose another"
	}
	return &config.Error{Setting: setting, Value: address, Reason: reason}
}

// Run follows the log into the index, if there is one, and runs the services until ctx ends or one
// fails, then stops them in reverse order, each given what is left of NGIT_SHUTDOWN_WAIT: put those
// first that others need to finish their work. The error is the first: why a service failed, or
// else what went wrong as they stopped; those that follow from it are logged.
func (n *Node) Run(ctx context.Context, services ...Service) (err error) {
	n.alone = len(services) == 1
	failed := make(chan error, 1)
	var started []*running
	for _, s := range append(n.events(services), services...) {
		started = append(started, n.start(ctx, s, failed))
	}
	var indexFailed <-chan error
	if n.Index != nil {
		indexFailed = n.Index.Failed()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	case err = <-n.Bus.Lost():
	case <-n.Bus.RoomAgain():
		err = errRoom
	case err = <-indexFailed:
	}
	deadline := time.Now().Add(n.Settings.ShutdownWait)
	n.deadline = deadline
	for _, r := range slices.Backward(started) {
		stopErr := r.stop(deadline)
		switch {
		case stopErr == nil || stopErr == err:
		case err == nil:
			err = stopErr
		default:
			n.Log.Warn("service did not stop well", "service", r.name, "error", stopErr)
		}
		if errors.Is(stopErr, errOverdue) {
			n.overdue.Store(true)
		}
	}
	return err
}

// events are the services that keep what the process knows of accepted events: one follows the log
// into the index, or asks ingest now and then whether it answers. Only a process with ingest
// answers others, because pushes are decided by these answers; NATS permits it to no other login.
func (n *Node) events(services []Service) []Service {
	own := []Service{{Name: "bans", Run: followBans}, {Name: "progress",
		Run: func(ctx context.Context, n *Node) error { return n.lag.tell(ctx, n) }}}
	if remote, asks := n.Accepted.(*query.Remote); asks {
		return append(own, Service{Name: "accepted events", Run: func(ctx context.Context,
			_ *Node) error {
			return remote.Run(ctx)
		}})
	}
	own = append(own, Service{Name: "index", Run: func(ctx context.Context, n *Node) error {
		return eventdb.Follow(ctx, n.Bus.JS, n.Index, n.Log)
	}})
	if slices.ContainsFunc(services, func(s Service) bool { return s.Name == proto.UserIngest }) {
		own = append(own, Service{Name: "accepted events", Run: func(ctx context.Context, n *Node) error {
			return query.Serve(ctx, n.Accepted.(*query.Index), n.Bus.Conn, n.Log)
		}})
	}
	return own
}

// followBans follows what is banned, and has the index hide that: when it has caught up with the
// log, and after each change.
func followBans(ctx context.Context, n *Node) error {
	if n.Index == nil {
		return n.Bans.Run(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	n.Bans.OnChange(func(bans.Subject) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	group.Go(func() error { return n.Bans.Run(ctx) })
	group.Go(func() error {
		for n.Index.WaitFor(ctx, n.head) != nil && ctx.Err() == nil {
			n.Log.Debug("the index is not where the log was at the start")
		}
		for ctx.Err() == nil {
			if err := n.Index.Hide(n.Bans); err != nil {
				return err
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return group.Wait()
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

// start runs s in a context of its own, so that a stop reaches the services one after the other and
// not all at once.
func (n *Node) start(ctx context.Context, s Service, failed chan<- error) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{name: s.Name, cancel: cancel, done: make(chan struct{}), named: func(err error) error {
		if s.Name == n.process {
			return err // the process says its name before all that it says at its end
		}
		return fmt.Errorf("%s: %w", s.Name, err)
	}}
	scoped := *n
	scoped.Log, scoped.Trace = n.Log.With("service", s.Name), n.traces.Of(s.Name, n.Worker)
	go func() {
		defer close(r.done)
		err := s.Run(own, &scoped)
		asked := own.Err() != nil
		switch {
		case err != nil && !(asked && errors.Is(err, context.Canceled)):
			r.err = r.named(err)
		case !asked:
			r.err = r.named(errEnded)
		}
		if !asked {
			select {
			case failed <- r.err:
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
	timer := time.NewTimer(max(time.Until(deadline), time.Millisecond)) // what has ended is not overdue
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	case <-timer.C:
		return r.named(errOverdue)
	}
}
