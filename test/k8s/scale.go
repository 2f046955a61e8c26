package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"tendril.dev/proto"
	"tendril.dev/test/k8s/cluster"
	"tendril.dev/test/outside"
)

// handOver is for how long two workers may be connected to one relay at once, as the relay sees it:
// the one that lets go closes its connection first, but the relay notices that in its own time.
const handOver = time.Second

// story tells the end-to-end story through the gateway's Service.
func (r *run) story(ctx context.Context) error {
	began := time.Now()
	if err := r.begin(ctx, "story", nil).finish(7 * time.Minute); err != nil {
		return err
	}
	r.measured("the story", time.Since(began))
	return nil
}

// scale scales relay workers 1 → 8 → 2 while events flow: nothing is lost, and every relay has one
// owner at all times.
func (r *run) scale(ctx context.Context) error {
	if _, err := r.scaleTo(ctx, 1); err != nil {
		return err
	}
	before, err := r.status(ctx)
	if err != nil {
		return err
	}
	flow := r.begin(ctx, "flow", url.Values{"events": {strconv.Itoa(r.o.events)}, "rate": {strconv.Itoa(r.o.rate)}})
	r.say("%d events begin to flow from %d relays, %d a second", r.o.events, r.o.relays, r.o.rate)
	for _, n := range []int{8, 2} {
		shared, err := r.scaleTo(ctx, n)
		if err != nil {
			return err
		}
		r.measured(fmt.Sprintf("from kubectl scale to %d until claims are shared out", n), shared.claimed)
		r.measured(fmt.Sprintf("from kubectl scale to %d until all relays are connected", n), shared.connected)
	}
	if err := flow.finish(time.Duration(r.o.events/r.o.rate)*time.Second*2 + time.Minute); err != nil {
		return err
	}
	if err := r.served(ctx); err != nil {
		return err
	}
	return r.oneOwner(ctx, before.Now)
}

// shares is how long it took until relays were shared out.
type shares struct{ claimed, connected time.Duration }

// scaleTo scales the relay workers and waits until the relays are shared out among them: claims do
// not change any more, and each relay is connected by the worker that claims it, and by no other.
func (r *run) scaleTo(ctx context.Context, n int) (shares, error) {
	claims, err := r.bus.claims(ctx, proto.GroupRelays)
	if err != nil {
		return shares{}, err
	}
	r.say("before scaling to %d: %s", n, sharesLine(claims))
	began, changed, connected := time.Now(), time.Now(), time.Time{}
	if _, err := cluster.Kubectl(ctx, "-n", r.o.namespace, "scale", "deployment/relayconn", "--replicas="+strconv.Itoa(n)); err != nil {
		return shares{}, err
	}
	err = r.await(ctx, fmt.Sprintf("the relays are shared out among %d workers", n), 5*time.Minute, func() string {
		now, err := r.bus.claims(ctx, proto.GroupRelays)
		if err != nil {
			return err.Error()
		}
		if !maps.Equal(now, claims) {
			claims, changed = now, time.Now()
		}
		problem := r.notShared(ctx, n, claims)
		switch {
		case problem != "":
			connected = time.Time{}
			return problem
		case connected.IsZero():
			connected = time.Now()
		}
		if time.Since(changed) < 5*time.Second {
			return "claims still change"
		}
		return ""
	})
	if err != nil {
		return shares{}, err
	}
	s := shares{changed.Sub(began), connected.Sub(began)}
	r.say("after:  %s (shared out after %v, all connected after %v)", sharesLine(claims), s.claimed.Round(100*time.Millisecond), s.connected.Round(100*time.Millisecond))
	r.summary.add(fmt.Sprintf("%s: claims with %d workers", r.overlay, n), fmt.Sprint(slices.Sorted(maps.Values(byWorker(claims)))))
	return s, nil
}

// notShared says what is still missing until the relays are shared out among n workers.
func (r *run) notShared(ctx context.Context, n int, claims map[string]string) string {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err.Error()
	}
	workers := map[string]string{}
	for _, p := range cluster.Of(pods, "relayconn") {
		if p.Ready {
			workers[p.Name] = p.IP
		}
	}
	if len(workers) != n {
		return fmt.Sprintf("%d of %d workers are ready", len(workers), n)
	}
	status, err := r.status(ctx)
	if err != nil {
		return err.Error()
	}
	return unshared(status.Relays, workers, claims, outside.Holders(status.Spans))
}

// served waits until everything is served that was published or acknowledged.
func (r *run) served(ctx context.Context) error {
	if err := r.begin(ctx, "served", nil).finish(10 * time.Minute); err != nil {
		return err
	}
	s, err := r.status(ctx)
	if err == nil {
		r.summary.add(r.overlay+": events of relays so far, all served", strconv.Itoa(s.Published))
	}
	return err
}

// oneOwner checks that no two workers were connected to one relay since a time, but for a
// hand-over.
func (r *run) oneOwner(ctx context.Context, since time.Time) error {
	s, err := r.status(ctx)
	if err != nil {
		return err
	}
	recent := slices.DeleteFunc(s.Spans, func(sp outside.Span) bool { return !sp.Closed.IsZero() && sp.Closed.Before(since) })
	overlaps := slices.DeleteFunc(outside.Overlaps(recent, s.Now), func(o outside.Overlap) bool { return o.From.Before(since) })
	worst := time.Duration(0)
	if len(overlaps) > 0 {
		worst = overlaps[0].For
	}
	longest := time.Duration(0)
	if gaps := outside.Gaps(recent, since, s.Now); len(gaps) > 0 {
		longest = gaps[0].For
	}
	r.say("the relays saw %d connections; two workers at once: %d times, for %v at most; none: for %v at most",
		len(recent), len(overlaps), worst.Round(time.Millisecond), longest.Round(100*time.Millisecond))
	r.summary.add(r.overlay+": two workers at one relay at once, at most", worst.Round(time.Millisecond).String())
	if worst > handOver {
		return fmt.Errorf("%s and %s were both connected to %s for %v from %v on", overlaps[0].First, overlaps[0].Second, overlaps[0].Relay, worst, overlaps[0].From)
	}
	return nil
}
