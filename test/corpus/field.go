package corpus

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Field is a set with the shape of a large public service: identifiers that several keys share,
// maintainers, states with many references, threads with replies to replies, CI results (NIP-C1) by
// few keys, and announcements whose data is nowhere.
type Field struct {
	Repositories int
	Keys         int
	Refs         map[string]string
	Commit       string               // that pull requests are for; the repositories have it
	Relay        string               // that the announcements name
	Clone        func(n int) []string // clone URLs of a repository
}

// runners is how many keys write CI results.
const runners = 16

// IsNowhere reports whether the data of a repository is nowhere: that of each tenth.
func (Field) IsNowhere(n int) bool { return n%10 == 9 }

// Owner is who announces a repository.
func (f Field) Owner(n int) *fixture.Person { return person("field ", n%f.Keys) }

// Identifier is that of a repository; a fifth of them are shared by two keys.
func (f Field) Identifier(n int) string {
	return fmt.Sprint("field-", n%(f.Repositories-f.Repositories/5))
}

// Repository makes the announcement and the state of a repository, and the conversations about it.
func (f Field) Repository(n int) (events []*nostr.Event) {
	// A relay shows no more of one second than it does of one page.
	at := nostr.Timestamp(begin + 20*n)
	owner, id := f.Owner(n).At(at), f.Identifier(n)
	maintainers := nostr.Tag{"maintainers"}
	if n%7 == 0 {
		maintainers = append(maintainers, f.Owner(n+1).PubKey)
	}
	events = append(events,
		owner.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", id}, nostr.Tag{"name", id}, append(nostr.Tag{"clone"}, f.Clone(n)...),
			nostr.Tag{"relays", f.Relay}, maintainers),
		owner.At(at+1).State(id, f.Refs))
	repository := owner.Repo(id)
	issue := f.Owner(n+3).At(at+2).Sign(1621, "It does not work.", repository, nostr.Tag{"p", owner.PubKey}, nostr.Tag{"subject", id})
	reply := owner.At(at+3).Comment("Which version?", issue, issue)
	events = append(events, issue, reply, f.Owner(n+3).At(at+4).Comment("The newest.", issue, reply))
	if n%8 < 7 {
		pull := f.Owner(n+5).At(at+5).Pull("It works now.", f.Commit, repository, nostr.Tag{"p", owner.PubKey}, append(nostr.Tag{"clone"}, f.Clone(n)...))
		events = append(events, pull, owner.At(at+6).Comment("Thank you.", pull, pull),
			owner.At(at+7).Sign(1631, "", nostr.Tag{"e", pull.ID, "", "root"}, repository))
		for run := range 2 {
			runner := person("runner ", n%runners).At(at + 8 + nostr.Timestamp(run))
			events = append(events, runner.Sign(9841, fmt.Sprint("run ", run), nostr.Tag{"e", pull.ID}, repository))
		}
	}
	return events
}

// Lines are the events of all repositories as JSON, and the ids of those that a complete archive
// has.
func (f Field) Lines() (lines [][]byte, archived map[string]bool) {
	made, workers := make([][]*nostr.Event, f.Repositories), runtime.GOMAXPROCS(0)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for n := w; n < f.Repositories; n += workers {
				made[n] = f.Repository(n)
			}
		})
	}
	all.Wait()
	archived = map[string]bool{}
	for n, events := range made {
		for _, ev := range events {
			lines = append(lines, []byte(ev.String()))
			if !f.IsNowhere(n) {
				archived[ev.ID] = true
			}
		}
	}
	return slices.Clip(lines), archived
}
