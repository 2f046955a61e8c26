package login_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/login"
	"tendril.dev/services/relayconn/wire"
)

const secret = "0000000000000000000000000000000000000000000000000000000000000001"

// talk is a login between a relay and a session that tests play.
type talk struct {
	*testing.T
	login  *login.Login
	mu     sync.Mutex
	said   []string // to the relay
	proof  nostr.Event
	passed []string // to the session
}

func begin(t *testing.T, sign func(*nostr.Event) error) *talk {
	c := &talk{T: t}
	if sign == nil {
		sign = func(ev *nostr.Event) error { return ev.Sign(secret) }
	}
	c.login = login.New(login.Options{
		Relay: relay{c}, URL: "wss://relay.example", Sign: sign, Log: slog.New(slog.DiscardHandler),
		Pass: func(_ context.Context, m wire.Message) error {
			c.pass(m)
			return nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.login.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *talk) pass(m wire.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed = append(c.passed, fmt.Sprint(m.Kind, " ", m.Sub))
}

func (c *talk) note(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, what)
	return nil
}

// relay notes what the login says to it.
type relay struct{ *talk }

func (r relay) Req(_ context.Context, sub string, _ []nostr.Filter) error {
	return r.note("REQ " + sub)
}
func (r relay) Unsubscribe(_ context.Context, sub string) error { return r.note("CLOSE " + sub) }
func (r relay) NegOpen(_ context.Context, sub string, _ nostr.Filter, _ []byte) error {
	return r.note("NEG-OPEN " + sub)
}
func (r relay) NegMsg(_ context.Context, sub string, _ []byte) error { return r.note("NEG-MSG " + sub) }
func (r relay) NegClose(_ context.Context, sub string) error         { return r.note("NEG-CLOSE " + sub) }
func (r relay) Auth(_ context.Context, ev nostr.Event) error {
	r.mu.Lock()
	r.proof = ev
	r.mu.Unlock()
	return r.note("AUTH " + ev.Tags.Find("challenge")[1])
}

func (c *talk) hears(m wire.Message) {
	c.Helper()
	if !c.login.Hear(m) {
		c.pass(m)
	}
	synctest.Wait()
}

func (c *talk) refuse(subs ...string) {
	c.Helper()
	for _, sub := range subs {
		c.hears(wire.Message{Kind: wire.Closed, Sub: sub, Reason: "auth-required: who are you?"})
	}
}

func (c *talk) challenge(text string) {
	c.Helper()
	c.hears(wire.Message{Kind: wire.Auth, Reason: text})
}

// answer is what the relay says of our proof.
func (c *talk) answer(ok bool) {
	c.Helper()
	c.hears(wire.Message{Kind: wire.OK, Sub: c.proof.ID, OK: ok})
}

func (c *talk) ask(subs ...string) {
	c.Helper()
	for _, sub := range subs {
		if err := c.login.Req(c.Context(), sub, nil); err != nil {
			c.Fatal(err)
		}
	}
}

// want compares what was said to the relay and passed to the session since it was called last.
func (c *talk) want(said, passed string) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.said, ", "); got != said {
		c.Errorf("said to the relay: %q, want %q", got, said)
	}
	if got := strings.Join(c.passed, ", "); got != passed {
		c.Errorf("passed to the session: %q, want %q", got, passed)
	}
	c.said, c.passed = nil, nil
}

// TestLogin: what a relay refuses for want of authentication is asked again when we have
// authenticated, and the session hears nothing of it.
func TestLogin(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]func(c *talk){
		"the challenge comes first": func(c *talk) {
			c.challenge("x")
			c.ask("a", "b")
			c.want("REQ a, REQ b", "AUTH ")
			c.refuse("a", "b")
			c.want("AUTH x", "")
			c.answer(true)
			c.want("REQ a, REQ b", "OK "+c.proof.ID)
		},
		"the challenge comes last": func(c *talk) {
			c.ask("a")
			c.refuse("a")
			c.want("REQ a", "")
			c.challenge("x")
			c.want("AUTH x", "AUTH ")
			c.ask("b")
			c.refuse("b") // it was on its way before the relay had our answer
			c.answer(true)
			c.want("REQ b, REQ a, REQ b", "OK "+c.proof.ID)
		},
		"a refusal comes after the answer was taken": func(c *talk) {
			c.challenge("x")
			c.ask("a", "b")
			c.refuse("a")
			c.answer(true)
			c.refuse("b")
			c.want("REQ a, REQ b, AUTH x, REQ a, REQ b", "AUTH , OK "+c.proof.ID)
		},
		"a session of NIP-77": func(c *talk) {
			c.challenge("x")
			if err := c.login.NegOpen(c.Context(), "n", nostr.Filter{}, []byte{0x61}); err != nil {
				c.Fatal(err)
			}
			c.hears(wire.Message{Kind: wire.NegErr, Sub: "n", Reason: "auth-required: no"})
			c.answer(true)
			c.want("NEG-OPEN n, AUTH x, NEG-OPEN n", "AUTH , OK "+c.proof.ID)
		},
		"what has ended is not asked again": func(c *talk) {
			c.challenge("x")
			c.ask("a", "b")
			c.refuse("a", "b")
			if err := c.login.Unsubscribe(c.Context(), "a"); err != nil {
				c.Fatal(err)
			}
			c.answer(true)
			c.want("REQ a, REQ b, AUTH x, CLOSE a, REQ b", "AUTH , OK "+c.proof.ID)
		},
		"other refusals are the session's": func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.hears(wire.Message{Kind: wire.Closed, Sub: "a", Reason: "restricted: not you"})
			c.hears(wire.Message{Kind: wire.Closed, Sub: "unknown", Reason: "auth-required: "})
			c.hears(wire.Message{Kind: wire.Event, Sub: "a"})
			c.want("REQ a", "AUTH , CLOSED a, CLOSED unknown, EVENT a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { story(begin(t, nil)) })
		})
	}
}

// TestRefusalsThatStay are passed on to the session, and nothing is said to the relay again and
// again.
func TestRefusalsThatStay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sign  func(*nostr.Event) error
		story func(c *talk)
	}{
		"it does not take the answer": {story: func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.refuse("a")
			c.answer(false)
			c.want("REQ a, AUTH x", "AUTH , OK "+c.proof.ID+", CLOSED a")
		}},
		"it takes the answer, and refuses all the same": {story: func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.refuse("a")
			c.answer(true)
			c.refuse("a")
			c.want("REQ a, AUTH x, REQ a", "AUTH , OK "+c.proof.ID+", CLOSED a")
		}},
		"it says no challenge": {story: func(c *talk) {
			c.ask("a")
			c.refuse("a")
			c.want("REQ a", "")
			time.Sleep(10 * time.Second)
			c.want("", "CLOSED a")
		}},
		"it does not say whether it takes the answer": {story: func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.refuse("a")
			c.want("REQ a, AUTH x", "AUTH ")
			time.Sleep(10 * time.Second)
			c.want("", "CLOSED a")
		}},
		"there is no key": {sign: func(*nostr.Event) error { return fs.ErrNotExist }, story: func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.refuse("a")
			c.want("REQ a", "AUTH , CLOSED a")
		}},
		"the key cannot be read": {sign: func(*nostr.Event) error { return errors.New("broken") }, story: func(c *talk) {
			c.challenge("x")
			c.ask("a")
			c.refuse("a")
			c.want("REQ a", "AUTH , CLOSED a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				talk := begin(t, c.sign)
				c.story(talk)
				talk.ask("later") // once a connection is all
				talk.challenge("y")
				talk.refuse("later")
				talk.want("REQ later", "AUTH , CLOSED later")
			})
		})
	}
}

// TestProof: what is signed names the relay as we dialled it, and its challenge, and nothing else
// that the relay says.
func TestProof(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := begin(t, nil)
		c.challenge("of before")
		c.challenge("x")
		c.ask("a")
		c.refuse("a")
		c.want("REQ a, AUTH x", "AUTH , AUTH ")
		ev := c.proof
		want := nostr.Tags{{"relay", "wss://relay.example"}, {"challenge", "x"}}
		if ok, err := ev.CheckSignature(); !ok || ev.Kind != 22242 || ev.Content != "" || !slices.EqualFunc(ev.Tags, want, slices.Equal[nostr.Tag]) {
			t.Errorf("%s, %v", ev, err)
		}
	})
}
