package relayconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

const (
	// introduceTime bounds what is said to one relay, and mostFound the events that it may answer.
	introduceTime, mostFound = 30 * time.Second, 10
	// introduceFirst is how long after a failure the relays are asked again, and introduceMost the
	// longest wait after several.
	introduceFirst, introduceMost = 5 * time.Second, time.Hour
)

// introduction publishes the service's profile and relay list, which the gateway has stored, to the
// relays where people look for those of others. Each worker does so once; to say the same twice
// changes nothing. What an operator has published with the key is never replaced: a kind of which one
// relay has another event is published nowhere, and that event is taken in here.
type introduction struct {
	*Env
	relays   []nostr.RelayURL
	accepted query.Source
	own      string // public key
}

// introduce finds the key of the service at each try: the gateway may just be making it.
func introduce(ctx context.Context, env *Env, relays []nostr.RelayURL, n *node.Node) {
	if len(relays) == 0 {
		return
	}
	i := &introduction{Env: env, relays: relays, accepted: n.Accepted}
	i.run(ctx, func() (own string, err error) {
		key, err := n.Settings.FindKey(".")
		return key.Public, err
	})
}

// run ends when the relays have what the log has, or have something else, or ctx ends.
func (i *introduction) run(ctx context.Context, findOwn func() (own string, err error)) {
	backoff.Retry(ctx, introduceFirst, introduceMost, func() (err error) {
		if i.own, err = findOwn(); err != nil {
			return err
		}
		return i.introduce(ctx)
	}, func(err error) {
		i.Log.Debug("the service's own profile and relay list are not published yet", "error", err)
	})
}

// introduce asks all relays first: none is told anything before all have answered.
func (i *introduction) introduce(ctx context.Context) error {
	here := map[int]*nostr.Event{}
	for ev, err := range i.accepted.Query(ctx, i.filter()) {
		if err != nil {
			return fmt.Errorf("read the service's own profile and relay list: %w", err)
		}
		here[ev.Kind] = ev
	}
	if len(here) < len(i.filter().Kinds) {
		return errors.New("the gateway has not stored both")
	}
	found := map[nostr.RelayURL][]*nostr.Event{}
	for _, url := range i.relays {
		events, err := i.tell(ctx, url, nil)
		if err != nil {
			return fmt.Errorf("ask %s for the service's own profile and relay list: %w", url, err)
		}
		found[url] = events
	}
	foreign := map[int]bool{}
	for url, events := range found {
		for _, ev := range events {
			if ev.ID == here[ev.Kind].ID {
				continue
			}
			foreign[ev.Kind] = true
			if _, err := i.Intake.Open(string(url)).Take(ctx, intake.Arrival{Event: ev, Lane: proto.LaneSyncLive,
				Source: proto.SourceStartup, Came: time.Now(), Done: func(intake.Result) {}}); err != nil {
				return fmt.Errorf("take in what %s has: %w", url, err)
			}
		}
	}
	for url, events := range found {
		missing := maps.Clone(here)
		maps.DeleteFunc(missing, func(kind int, _ *nostr.Event) bool {
			return foreign[kind] || slices.ContainsFunc(events, func(ev *nostr.Event) bool { return ev.Kind == kind })
		})
		if err := i.publish(ctx, url, slices.Collect(maps.Values(missing))); err != nil {
			return err
		}
	}
	return nil
}

// publish gives a relay events, and asks whether it has kept them.
func (i *introduction) publish(ctx context.Context, url nostr.RelayURL, events []*nostr.Event) error {
	if len(events) == 0 {
		return nil
	}
	kept, err := i.tell(ctx, url, events)
	if err == nil && len(kept) < len(events) {
		err = errors.New("the relay has not kept all of them")
	}
	if err != nil {
		return fmt.Errorf("publish the service's own profile and relay list at %s: %w", url, err)
	}
	i.Log.Info("the service's own profile or relay list is published", "relay", url, "events", len(events))
	return nil
}

func (i *introduction) filter() nostr.Filter {
	return nostr.Filter{Kinds: []int{nostr.KindProfile, nostr.KindRelayList}, Authors: []string{i.own}}
}

// tell connects to a relay, gives it events, and returns what it has of the service's own.
func (i *introduction) tell(ctx context.Context, url nostr.RelayURL, events []*nostr.Event) (has []*nostr.Event, err error) {
	ctx, cancel := context.WithTimeout(ctx, introduceTime)
	defer cancel()
	unless, end := i.unlessBanned(ctx, string(url))
	defer end()
	if _, err := i.mayConnect(unless, string(url)); err != nil {
		return nil, err
	}
	conn, err := i.Dial(unless, string(url))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	errAnswered := errors.New("the relay has answered")
	err = talk(unless, conn, func(ctx context.Context, messages <-chan wire.Message) error {
		if has, err = i.converse(ctx, string(url), conn, events, messages); err == nil {
			err = errAnswered // which ends what runs besides
		}
		return err
	})
	if errors.Is(err, errAnswered) {
		return has, nil
	}
	return nil, cmp.Or(err, context.Cause(unless), errors.New("the relay has ended the connection"))
}

// converse gives the relay events and asks for what it has, once more after each challenge.
func (i *introduction) converse(ctx context.Context, url string, conn Connection, events []*nostr.Event,
	messages <-chan wire.Message) (has []*nostr.Event, err error) {
	round := 0
	subscription := func() string { return fmt.Sprintf("own-%d", round) }
	begin := func() {
		round, has = round+1, nil
		for _, ev := range events {
			conn.Publish(ev)
		}
		conn.Req(subscription(), []nostr.Filter{i.filter()})
	}
	begin()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case m, open := <-messages:
			switch {
			case !open:
				return nil, errors.New("the relay has ended the connection")
			case m.Kind == wire.Auth && round == 1:
				if err := i.authenticate(conn, url)(m.Reason); err != nil {
					return nil, err
				}
				begin()
			case m.Sub != subscription():
			case m.Kind == wire.EOSE:
				return has, nil
			case m.Kind == wire.Closed && (round > 1 || !strings.HasPrefix(m.Reason, "auth-required:")):
				return nil, errors.New(m.Reason)
			case m.Kind == wire.Event && len(has) < mostFound && i.filter().Matches(m.Event) &&
				nostr.HasID(m.Event) && nostr.Signed(m.Event):
				has = append(has, m.Event)
			}
		}
	}
}
