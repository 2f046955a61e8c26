package publish

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/roots"
	"tendril.dev/services/discovery/wanted"
)

// ListsKept makes the publisher look for lists that nobody wants at every time of publishing, and
// withdraw those that nobody has wanted for this long.
func (p *Publisher) ListsKept(keep time.Duration) { p.lists.lookEvery, p.lists.keep = 0, keep }

// ListsToWithdraw is how many lists the publisher would withdraw at some time.
func (p *Publisher) ListsToWithdraw(targets map[string]wanted.Target, now time.Time) int {
	return len(p.unwantedLists(targets, now))
}

// Through makes the publisher use another way to JetStream, before it follows.
func (p *Publisher) Through(js jetstream.JetStream) { p.js, p.reader = js, roots.NewReader(js) }
