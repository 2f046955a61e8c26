package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

// relay is how the messages of one relay stand, as their headers say, or those of one repository's
// list of root events.
type relay struct {
	last     uint64    // sequence of its last message
	sum      string    // of the target, or the list, by then; empty: the message does not say
	messages int       // since the last snapshot, which counts
	parts    int       // messages of the last snapshot
	partial  bool      // of which more are to come
	gone     time.Time // when it was read that it is no target, or no list, any more; zero: it is one
}

// exists reports whether there is a target or a list.
func (r relay) exists() bool { return r.last > 0 && r.gone.IsZero() }

// contents is what the messages of one relay say.
type contents struct {
	at      uint64 // the last of them
	target  wanted.Target
	whole   target.Target     // the same with whole ids, if it was read just now
	lists   bool              // the target names lists of root events
	broken  bool              // of which one is not there any more: the target does not have that repository
	changed map[string]uint64 // by reference: the sequence of the last message that changed the repository; nil: not known
}

// after is how a relay stands after a further message.
func (r relay) after(m bus.Message) relay {
	r.last, r.messages = m.Seq, r.messages+1
	r.sum, r.gone = m.Header.Get(proto.HeaderSum), time.Time{}
	whole := r.sum != ""
	switch {
	case m.Header.Get(jetstream.MsgRollup) != "":
		r.messages, r.parts, r.partial = 1, 1, !whole
	case r.partial:
		r.parts, r.partial = r.parts+1, !whole
	}
	if m.Header.Get(proto.HeaderGone) != "" {
		r.gone = time.Now()
	}
	return r
}

// sum is what the last message of a change says of what is wanted after it.
func (c contents) sum(want wanted.Target) string {
	if c.lists {
		return listsSum + want.Sum()
	}
	return want.Sum()
}

// note keeps when each repository was changed last, where that is known.
func (c *contents) note(change proto.TargetChange, seq uint64) {
	switch {
	case change.Snapshot || change.Gone:
		c.changed = map[string]uint64{}
	case c.changed == nil:
		return
	}
	for _, r := range change.Repos {
		if r.Gone {
			delete(c.changed, r.Ref)
		} else {
			c.changed[r.Ref] = cmp.Or(r.Since, seq)
		}
	}
}

// snapshot replaces everything that was said of a relay by what is wanted of it. It says since when
// the repositories are as they are, so that a worker that takes the relay over knows what of it was
// confirmed before.
func (c contents) snapshot(want wanted.Target, whole target.Target, lists target.Lists, limit int) []proto.TargetChange {
	changes := lists.Snapshot(whole, limit)
	for _, change := range changes {
		for i, r := range change.Repos {
			if want.Repos[r.Ref].Equal(c.target.Repos[r.Ref]) {
				change.Repos[i].Since = c.changed[r.Ref]
			}
		}
	}
	return changes
}

// contentsOf reads what all messages of a relay say.
func (p *Publisher) contentsOf(ctx context.Context, key string) (c contents, err error) {
	subject, err := proto.TargetSubject(key)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errUnfit, err)
	}
	c.changed = map[string]uint64{}
	var folded target.Folded
	err = bus.Read(ctx, p.js, bus.Reading{Stream: proto.StreamTargets, Filters: []string{subject}}, func(m bus.Message) {
		c.at = m.Seq
		var change proto.TargetChange
		// A message that cannot be read is there all the same: whoever writes next must expect it.
		if err := json.Unmarshal(m.Data, &change); err != nil {
			p.log.Error("a message of targets cannot be read", "subject", m.Subject, "error", err)
			return
		}
		folded.Take(change)
		c.note(change, m.Seq)
	})
	if err != nil {
		return c, err
	}
	return c, p.complete(ctx, &c, folded)
}

// complete reads the lists that a target names.
func (p *Publisher) complete(ctx context.Context, c *contents, folded target.Folded) error {
	whole := folded.Target()
	found := map[string][]target.ID{}
	for ref, n := range folded.Named() {
		c.lists = true
		list, there, err := p.reader.At(ctx, ref, n.At)
		if err != nil {
			return err
		}
		if !there {
			c.broken = true
			delete(whole.Repos, ref) // which nobody else has yet
			continue
		}
		found[ref] = n.Roots(list)
	}
	c.whole = whole.With(found)
	c.target = wanted.Of(c.whole)
	return nil
}

// readAgain reads what the messages of a relay say, which stand as r says.
func (p *Publisher) readAgain(ctx context.Context, key string, r relay) (have contents, err error) {
	have, err = p.contentsOf(ctx, key)
	switch {
	case err != nil:
		return have, fmt.Errorf("read what is published: %w", err)
	case have.at > r.last:
		return have, errors.Join(p.lookAgain(ctx), ErrOvertaken)
	case have.at < r.last && r.exists():
		return have, fmt.Errorf("read what is published: message %d of %s is missing", r.last, proto.StreamTargets)
	}
	have.at = r.last // what said that it is no target any more goes by itself
	p.know(key, have)
	return have, nil
}

// know keeps what the messages of a relay say, without whole ids.
func (p *Publisher) know(key string, c contents) {
	c.whole = target.Target{}
	p.known[key] = c
}
