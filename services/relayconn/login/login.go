// Package login authenticates to a relay that asks for it (NIP-42), once a connection and with the
// operator's key, and makes the requests again that the relay has refused before. The session that
// talks over the connection knows nothing of it.
package login

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip42"

	"tendril.dev/services/relayconn/wire"
)

// patience is how long a relay may take to say its challenge, or to take our answer, after it has
// refused something.
const patience = 10 * time.Second

// required begins the reason of what is refused to those who have not authenticated (NIP-42).
const required = "auth-required:"

// Relay is asked; *wire.Conn is one.
type Relay interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
	NegOpen(ctx context.Context, sub string, filter nostr.Filter, message []byte) error
	NegMsg(ctx context.Context, sub string, message []byte) error
	NegClose(ctx context.Context, sub string) error
	Auth(ctx context.Context, ev nostr.Event) error
}

// Options are what a login needs.
type Options struct {
	Relay Relay
	URL   string // of the relay, as it was dialled: nothing that the relay says gets into what is signed but its challenge
	// Sign signs with the operator's key. Its error is fs.ErrNotExist where there is none.
	Sign func(ev *nostr.Event) error
	// Pass hands a message of the relay on to the session. It waits until the session takes it.
	Pass func(ctx context.Context, m wire.Message) error
	Log  *slog.Logger
}

// phase is how far it has come on this connection. It only goes forward.
type phase int

const (
	idle    phase = iota // nothing was refused
	needed               // something was, and the challenge is waited for
	sent                 // the relay has our answer to it
	taken                // and takes it
	refused              // it does not, or nothing came of it: what is refused stays so
)

// request is one that is open, to be made again.
type request struct {
	make  func(ctx context.Context) error
	again bool // it was made again
}

// Login stands between a session and its connection.
type Login struct {
	o    Options
	wake chan struct{} // of capacity 1: there may be something to do

	// asking is held while a request is made or ended, so that none is made again that has ended.
	asking sync.Mutex

	mu        sync.Mutex // guards what follows; held for moments only
	phase     phase
	challenge string
	proof     string    // id of our answer
	by        time.Time // until when the relay may take its time
	open      map[string]*request
	held      []wire.Message // what refuses requests, and may not have to be passed on
}

// New makes the login of one connection. Run does its work.
func New(o Options) *Login {
	return &Login{o: o, wake: make(chan struct{}, 1), open: map[string]*request{}}
}

// Req opens a subscription.
func (l *Login) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	return l.ask(ctx, sub, func(ctx context.Context) error { return l.o.Relay.Req(ctx, sub, filters) })
}

// NegOpen opens a session of reconciliation (NIP-77).
func (l *Login) NegOpen(ctx context.Context, sub string, filter nostr.Filter, message []byte) error {
	return l.ask(ctx, sub, func(ctx context.Context) error { return l.o.Relay.NegOpen(ctx, sub, filter, message) })
}

// NegMsg goes on with a session.
func (l *Login) NegMsg(ctx context.Context, sub string, message []byte) error {
	return l.o.Relay.NegMsg(ctx, sub, message)
}

// Unsubscribe closes a subscription.
func (l *Login) Unsubscribe(ctx context.Context, sub string) error {
	return l.end(ctx, sub, l.o.Relay.Unsubscribe)
}

// NegClose ends a session.
func (l *Login) NegClose(ctx context.Context, sub string) error {
	return l.end(ctx, sub, l.o.Relay.NegClose)
}

func (l *Login) ask(ctx context.Context, sub string, make func(ctx context.Context) error) error {
	l.asking.Lock()
	defer l.asking.Unlock()
	l.mu.Lock()
	if l.phase != refused {
		l.open[sub] = &request{make: make}
	}
	l.mu.Unlock()
	return make(ctx)
}

func (l *Login) end(ctx context.Context, sub string, end func(ctx context.Context, sub string) error) error {
	l.asking.Lock()
	defer l.asking.Unlock()
	l.mu.Lock()
	delete(l.open, sub)
	l.held = slices.DeleteFunc(l.held, func(m wire.Message) bool { return m.Sub == sub })
	l.mu.Unlock()
	return end(ctx, sub)
}

// Hear takes in a message of the relay, and reports whether to keep it from the session: a refusal
// that may be undone. It does not wait. Challenges and answers mean nothing to the session, which
// slows a relay down that sends too much of that.
func (l *Login) Hear(m wire.Message) (kept bool) {
	switch m.Kind {
	case wire.Auth:
		l.hearChallenge(m.Reason)
	case wire.OK:
		l.hearAnswer(m)
	case wire.Closed, wire.NegErr:
		return l.hearRefusal(m)
	}
	return false
}

func (l *Login) hearChallenge(challenge string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.challenge = challenge
	if l.phase == needed {
		l.stir()
	}
}

func (l *Login) hearAnswer(m wire.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != sent || m.Sub != l.proof {
		return
	}
	if l.phase = taken; !m.OK {
		l.o.Log.Debug("the relay does not take our authentication", "reason", m.Reason)
		l.giveUp()
	}
	l.stir()
}

// hearRefusal keeps back the refusal of a request that can be made again.
func (l *Login) hearRefusal(m wire.Message) (kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.open[m.Sub]
	delete(l.open, m.Sub)
	if r == nil || l.phase == refused || !strings.HasPrefix(m.Reason, required) {
		return false
	}
	if r.again {
		l.giveUp() // the relay has taken our answer, and refuses all the same
		l.stir()
		return false
	}
	l.open[m.Sub] = r
	l.held = append(l.held, m)
	if l.phase == idle {
		l.phase, l.by = needed, time.Now().Add(patience)
	}
	l.stir()
	return true
}

// giveUp leaves refused what is. The caller holds the lock.
func (l *Login) giveUp() {
	l.phase = refused
	clear(l.open)
}

func (l *Login) stir() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run answers the challenge, makes requests again, and passes on the refusals that stay, until ctx
// ends. It returns an error when the connection is of no use any more.
func (l *Login) Run(ctx context.Context) error {
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for {
		if err := l.work(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("authenticate to the relay: %w", err)
		}
		late.Reset(l.waits())
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-late.C:
		}
	}
}

// waits is how long the relay may still take its time.
func (l *Login) waits() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == needed || l.phase == sent {
		return time.Until(l.by)
	}
	return time.Hour
}

// work does what there is to do.
func (l *Login) work(ctx context.Context) error {
	l.mu.Lock()
	if (l.phase == needed || l.phase == sent) && !time.Now().Before(l.by) {
		l.giveUp()
	}
	now, challenge := l.phase, l.challenge
	l.mu.Unlock()
	switch {
	case now == needed && challenge != "":
		return l.prove(ctx, challenge)
	case now == taken:
		return l.askAgain(ctx)
	case now == refused:
		return l.passOn(ctx)
	}
	return nil
}

// prove answers the challenge.
func (l *Login) prove(ctx context.Context, challenge string) error {
	ev := nip42.CreateUnsignedAuthEvent(challenge, "", l.o.URL)
	if err := l.o.Sign(&ev); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.o.Log.Error("the operator's key cannot be used to authenticate to the relay", "error", err)
		}
		l.mu.Lock()
		l.giveUp()
		l.mu.Unlock()
		return l.passOn(ctx)
	}
	l.mu.Lock()
	l.phase, l.proof, l.by = sent, ev.ID, time.Now().Add(patience)
	l.mu.Unlock()
	l.o.Log.Debug("authenticating to the relay (NIP-42)")
	return l.o.Relay.Auth(ctx, ev)
}

// askAgain makes the requests again that were refused.
func (l *Login) askAgain(ctx context.Context) error {
	l.asking.Lock()
	defer l.asking.Unlock()
	for {
		l.mu.Lock()
		var r *request
		if len(l.held) > 0 {
			r = l.open[l.held[0].Sub]
			l.held = slices.Delete(l.held, 0, 1)
		}
		if r != nil {
			r.again = true
		}
		left := len(l.held)
		l.mu.Unlock()
		if r != nil {
			if err := r.make(ctx); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
	}
}

// passOn lets the session hear what stays refused.
func (l *Login) passOn(ctx context.Context) error {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, m := range held {
		if err := l.o.Pass(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
