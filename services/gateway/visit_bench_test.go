package gateway

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// BenchmarkPageOfABusyRepository is a page that counts a thousand issues, three quarters of which
// have a status, and a thousand pull requests.
func BenchmarkPageOfABusyRepository(b *testing.B) {
	sys := start(b)
	owner := fixture.NewPerson().On("git.example.com")
	now := nostr.Now()
	events := []*nostr.Event{owner.At(now - 90_000).Announce("r")}
	for n := range 1000 {
		at := now - nostr.Timestamp(50_000-n)
		author := owner
		if n%10 == 0 {
			author = fixture.NewPerson()
		}
		issue := author.At(at).Sign(nostr.KindIssue, "", nostr.Tag{"subject", fmt.Sprint("issue ", n)}, owner.Repo("r"))
		pull := author.At(at).Sign(nostr.KindPR, "", nostr.Tag{"subject", fmt.Sprint("pull ", n)}, owner.Repo("r"))
		if events = append(events, issue, pull); n%4 > 0 {
			events = append(events, owner.At(at+1).Sign(nostr.KindStatusClosed, "", nostr.Tag{"e", issue.ID, "", "root"}, owner.Repo("r")))
		}
	}
	sys.store(b, events...)
	for _, query := range []string{"", "?issues"} {
		b.Run("page"+query, func(b *testing.B) {
			for b.Loop() {
				if resp, page := sys.ask(b, "GET", "/"+owner.Npub+"/r.git"+query, ""); resp.StatusCode != 200 {
					b.Fatal(resp.Status, page)
				}
			}
		})
	}
}
