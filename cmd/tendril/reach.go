package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// running is how a command reaches a running system. It needs the settings of the bus and no
// others.
type running struct {
	Wait       time.Duration `default:"10s" help:"How long NATS may take to answer."`
	config.Bus `embed:"" group:"Bus"`
}

// busFlags is what a question to a running system needs.
type busFlags struct {
	printing `embed:""`
	running  `embed:""`
}

// printing is how an answer is printed.
type printing struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// print prints an answer, for machines or for people.
func (p printing) print(value any, text func(io.Writer)) error {
	if p.JSON {
		return printJSON(os.Stdout, value)
	}
	text(os.Stdout)
	return nil
}

// reach connects to the NATS of a running system: the server that is named, or else the one that
// `tendril up` embeds. user is who the command is at an embedded server with a password; empty: the
// operator. A failure is a sentence for the operator.
func (r running) reach(user string) (*bus.Bus, error) {
	options := bus.Options{
		Name: strings.Join(os.Args[:min(len(os.Args), 2)], " "), URL: r.NATSURL,
		LoginFile: r.NATSLoginFile, Creds: r.NATSCreds, CA: r.NATSCA, Cert: r.NATSCert, Key: r.NATSKey,
	}
	embedded := r.NATSURL == ""
	if embedded && r.NATSListen == "none" {
		return nil, errors.New("NGIT_NATS_LISTEN is \"none\": the NATS of `tendril up` listens nowhere; " +
			"want NGIT_NATS_URL, or the address that it listens on")
	}
	if embedded {
		options.URL, options.Password, options.Role = "nats://"+r.NATSListen, r.NATSPassword, user
	}
	b, err := bus.Look(options, r.Wait)
	switch {
	case embedded && errors.Is(err, nats.ErrAuthorization):
		return nil, fmt.Errorf("NGIT_NATS_PASSWORD is wrong: the NATS of `tendril up` at %s wants the password "+
			"that it was started with", options.URL)
	case errors.Is(err, nats.ErrNoServers):
		return nil, fmt.Errorf("no NATS server answers at %s: nothing runs there, or it is elsewhere "+
			"(NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)", bus.Redacted(options.URL))
	}
	return b, err
}

// untilSignal returns a context that ends with the first signal. A second one ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// do does something with a running system, until the first signal, or for so long if wait is not 0.
func (r running) do(wait time.Duration, do func(*reader) error) error {
	b, err := r.reach("")
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	if wait > 0 {
		ctx, stop = context.WithTimeout(ctx, wait)
		defer stop()
	}
	if err = hasStream(ctx, b, proto.StreamEvents); err == nil {
		err = do(&reader{Bus: b, ctx: ctx})
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s: %w", max(wait, r.Wait), err)
	}
	return err
}

// hasStream returns an error for a NATS server that no Tendril uses.
func hasStream(ctx context.Context, b *bus.Bus, name string) error {
	_, err := b.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("NATS at %s has no streams of Tendril: none has run with it", bus.Redacted(b.Conn.ConnectedUrl()))
	}
	if err != nil {
		return fmt.Errorf("look for stream %s: %w", name, err)
	}
	return nil
}

var discard = slog.New(slog.DiscardHandler)

// reader reads what is on the bus. Its first error stays, and nothing is read after it.
type reader struct {
	*bus.Bus
	ctx context.Context
	err error
}

// read hands every message of a subject of a stream to each; of an empty subject, all.
func (r *reader) read(stream, subject string, each func(bus.Message)) {
	if r.err == nil {
		r.err = bus.Read(r.ctx, r.JS, bus.Reading{Stream: stream, Filter: subject}, each)
	}
}

// last returns the last message of a subject.
func (r *reader) last(stream, subject string) (m bus.Message, found bool) {
	if r.err == nil {
		m, found, r.err = bus.Last(r.ctx, r.JS, stream, subject)
	}
	return m, found
}

// events asks for accepted events.
func (r *reader) events(f nostr.Filter) (events []*nostr.Event) {
	if r.err != nil {
		return nil
	}
	accepted, err := query.NewRemote(r.ctx, r.Bus, discard)
	if r.err = err; err != nil {
		return nil
	}
	for ev, err := range accepted.Query(r.ctx, f) {
		if r.err = err; err == nil {
			events = append(events, ev)
		}
	}
	return events
}

// isAuthor reports whether what was taken for the id of an event is the key of someone whose events
// are here: both have 64 hex digits.
func (r *reader) isAuthor(id string) bool {
	if id == "" {
		return false
	}
	asking := &reader{Bus: r.Bus, ctx: r.ctx} // without an answer it is taken for what it was
	return len(asking.events(nostr.Filter{IDs: []string{id}})) == 0 && asking.err == nil &&
		len(asking.events(nostr.Filter{Authors: []string{id}, Limit: 1})) > 0
}

// bucket reads the values of a bucket whose keys a pattern names, by key. A value that cannot be
// read is left out.
func bucket[T any](r *reader, name, keys string) map[string]T {
	all := map[string]T{}
	r.read(proto.KVStream(name), proto.KVSubject(name, keys), func(m bus.Message) {
		key := strings.TrimPrefix(m.Subject, proto.KVSubject(name, ""))
		delete(all, key)
		var value T
		if !m.Deletes() && json.Unmarshal(m.Data, &value) == nil {
			all[key] = value
		}
	})
	return all
}

// holders are the workers at work, by the keys of their claims.
func (r *reader) holders() map[string]string {
	workers, holders := bucket[proto.Worker](r, proto.BucketWorkers, ">"), map[string]string{}
	for key, claim := range bucket[proto.Claim](r, proto.BucketClaims, ">") {
		group, _, _ := proto.ParseClaimKey(key)
		if _, works := workers[proto.ClaimKey(group, claim.Worker)]; works {
			holders[key] = claim.Worker
		}
	}
	return holders
}
