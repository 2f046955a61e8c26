package relayconn

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

const (
	// visitTime is how long a connection lasts to a relay that no worker holds: what else is asked of
	// it meanwhile needs no other one.
	visitTime = time.Minute
	// mostVisits bounds such connections of a worker. Strangers write which relays there are.
	mostVisits = 16
	// revisitAfter is how long a relay is left alone to which no such connection could be made.
	revisitAfter = 5 * time.Minute
	// fetchesWaiting is how many messages wait for a session: its relay may be away.
	fetchesWaiting = 64
)

// Fetches hears which events ingest wants to be asked for by their ids (proto.Fetch), and hands
// them to the sessions with the relays. A relay that no worker holds is visited by one of the
// workers. What is lost here ingest says again.
type Fetches struct {
	env       *Env
	directory directory
	worker    string

	mu       sync.Mutex
	held     map[string]chan []string // by name of the relay, of those that this worker holds
	visited  map[string]chan []string // so of those that it visits
	failed   map[string]time.Time     // when no connection could be made
	visiting sync.WaitGroup
}

// directory knows the workers; *claim.Directory is one.
type directory interface {
	Holder(key string) (proto.Worker, bool)
	Preferred(key string) string
}

func newFetches(env *Env, d directory, worker string) *Fetches {
	return &Fetches{
		env: env, directory: d, worker: worker,
		held: map[string]chan []string{}, visited: map[string]chan []string{}, failed: map[string]time.Time{},
	}
}

// hold gives the ids to ask of a relay that this worker holds, until it lets go.
func (f *Fetches) hold(name string) (ids <-chan []string, letGo func()) {
	if f == nil {
		return nil, func() {}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	waiting := make(chan []string, fetchesWaiting)
	f.held[name] = waiting
	return waiting, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.held[name] == waiting {
			delete(f.held, name)
		}
	}
}

// hear takes in a message. It must not block.
func (f *Fetches) hear(ctx context.Context, data []byte) {
	var said proto.Fetch
	if err := json.Unmarshal(data, &said); err != nil || len(said.IDs) > proto.MaxFetched ||
		len(said.Relays) > proto.MaxFetchRelays {
		f.env.Log.Error("which events to ask for by id cannot be read", "bytes", len(data), "error", err)
		return
	}
	for _, given := range said.Relays {
		u, err := nostr.NormalizeRelayURL(given)
		if err != nil || u.OnDomain(f.env.Domain) || !f.env.Hosting.MayAsk(string(u)) {
			continue
		}
		if name, err := proto.EncodeRelay(u.Key()); err == nil {
			f.ask(ctx, name, string(u), said.IDs)
		}
	}
}

// ask hands ids to the worker that talks to a relay, which may be another worker.
func (f *Fetches) ask(ctx context.Context, name, url string, ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.held[name]
	if to == nil {
		if _, held := f.directory.Holder(name); held || f.directory.Preferred(name) != f.worker {
			return
		}
		to = f.visit(ctx, name, url)
	}
	select {
	case to <- ids:
	default: // nil, or full
	}
}

// visit begins a visit to a relay, unless there is one or it may not be; the lock is held.
func (f *Fetches) visit(ctx context.Context, name, url string) chan []string {
	if to := f.visited[name]; to != nil {
		return to
	}
	now := time.Now()
	for name, at := range f.failed {
		if now.Sub(at) >= revisitAfter {
			delete(f.failed, name)
		}
	}
	if _, failed := f.failed[name]; failed || len(f.visited) >= mostVisits || ctx.Err() != nil {
		return nil
	}
	to := make(chan []string, fetchesWaiting)
	f.visited[name] = to
	f.visiting.Go(func() {
		err := f.env.visit(ctx, url, to)
		f.mu.Lock()
		defer f.mu.Unlock()
		if delete(f.visited, name); err != nil {
			f.failed[name] = time.Now()
		}
	})
	return to
}

// wait waits for the visits to end, which are to end with their context.
func (f *Fetches) wait() { f.visiting.Wait() }

// visit connects to a relay for a minute and asks for ids. The error says that it could not.
func (e *Env) visit(ctx context.Context, url string, ids <-chan []string) error {
	ctx, end := e.unlessBanned(ctx, url)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, visitTime)
	defer cancel()
	if _, err := e.mayConnect(ctx, url); err != nil {
		return err
	}
	conn, err := e.dial(ctx, url)
	if err != nil {
		e.Log.Debug("a relay could not be visited", "url", url, "error", err)
		return err
	}
	defer conn.Close()
	s := session.New(session.Options{
		Rules: e.Rules.Session, Asker: conn, Wanted: func() session.Wanted { return session.Wanted{} },
		Intake: e.Intake.Open(url), Observer: visitor{e.Metrics}, Log: e.Log.With("url", url),
		Warned: map[string]bool{}, Pauses: &session.Pauses{}, ByID: ids, Authenticate: e.authenticate(conn, url),
	})
	err = talk(ctx, conn, func(ctx context.Context, messages <-chan wire.Message) error {
		return s.Run(ctx, session.Start{OnlyByID: true}, messages, nil, nil)
	})
	if ctx.Err() != nil {
		return nil // its time was over
	}
	return err
}

// visitor observes a session of a visit.
type visitor struct{ *Metrics }

// Status implements session.Observer, and so do the following.
func (v visitor) Status(session.Status) {}

func (v visitor) Judged(_ *nostr.Event, _ proto.Source, _ bool, verdict proto.Verdict) {
	if verdict.Outcome == proto.Accepted {
		v.synced.Inc()
	}
}

func (v visitor) Refused(category string) { v.refusals.WithLabelValues(category).Inc() }

func (v visitor) NotTaken(reason string) { v.notTaken.WithLabelValues(reason).Inc() }
