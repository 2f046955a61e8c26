package pages

import (
	"fmt"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// crowded is an index in which strangers announce the identifier of an owner and name the owner as
// their maintainer and lead.
func crowded(tb testing.TB, strangers int) (p *Pages, db *eventdb.DB, owner *fixture.Person) {
	tb.Helper()
	db, err := eventdb.Open(tb.TempDir(), eventdb.Options{})
	fixture.Must(tb, err)
	tb.Cleanup(func() { fixture.Must(tb, db.Close()) })
	owner = fixture.NewPerson().On("git.example.com")
	records := []eventdb.Record{{Seq: 1, Event: owner.Announce("r")}}
	for n := range strangers {
		by := fixture.NewPerson().On("git.example.com")
		announcement := by.Sign(nostr.KindAnnouncement, "", append(by.Announce("r").Tags,
			nostr.Tag{"m", by.PubKey}, nostr.Tag{"M", owner.PubKey}, nostr.Tag{"maintainers", owner.PubKey})...)
		records = append(records, eventdb.Record{Seq: uint64(2 + n), Event: announcement})
	}
	fixture.Must(tb, db.Apply(records))
	return &Pages{rules: config.Rules{Home: "git.example.com"}}, db, owner
}

func (p *Pages) repositoryOf(tb testing.TB, db *eventdb.DB, owner *fixture.Person) *repository {
	tb.Helper()
	v := db.View()
	defer v.Close()
	repo, err := p.repository(v, owner.PubKey, "r")
	fixture.Must(tb, err)
	return repo
}

// TestAPageAmongStrangers looks at as many announcements as it does alone, however many strangers
// announce the same identifier.
func TestAPageAmongStrangers(t *testing.T) {
	t.Parallel()
	for _, strangers := range []int{0, 500} {
		p, db, owner := crowded(t, strangers)
		if looked := p.repositoryOf(t, db, owner).group.Looked; len(looked) != 1 {
			t.Errorf("among %d strangers it looks at the announcements of %d authors", strangers, len(looked))
		}
	}
}

func BenchmarkPageAmongStrangers(b *testing.B) {
	for _, strangers := range []int{1, 10_000} {
		p, db, owner := crowded(b, strangers)
		b.Run(fmt.Sprint(strangers), func(b *testing.B) {
			for b.Loop() {
				p.repositoryOf(b, db, owner)
			}
		})
	}
}
