package repos

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// TestNothingIsKeptOfWhatIsGone: repositories, held and served, and root events come and go, also
// while the limits of relays are reached; then the book keeps nothing.
func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	t.Parallel()
	const domain = "git.example.com"
	b := NewBook(hosting.Of(domain), nil, Limits{Served: 20, Held: 5})
	event := func(n, kind int, tags ...nostr.Tag) *nostr.Event {
		ev := &nostr.Event{PubKey: fmt.Sprintf("%064x", n%7+1), Kind: kind, CreatedAt: nostr.Timestamp(n), Tags: tags}
		ev.ID = ev.GetID()
		return ev
	}
	announcement := func(n int) *nostr.Event {
		author := fmt.Sprintf("%064x", n%7+1)
		npub, err := nip19.EncodePublicKey(author)
		if err != nil {
			t.Fatal(err)
		}
		return event(n, nip34.KindAnnouncement, nostr.Tag{"d", fmt.Sprint("r", n)}, nostr.Tag{"clone", fmt.Sprintf("https://%s/%s/r%d.git", domain, npub, n)},
			nostr.Tag{"relays", "wss://" + domain, fmt.Sprintf("wss://relay%d.example", n), fmt.Sprintf("ws://relay%d.example:443", n%3)})
	}
	address := func(n int) string { return fmt.Sprintf("30617:%064x:r%d", n%7+1, n) }
	const served, held = 60, 40
	var roots []*nostr.Event
	for n := range served {
		b.Accept(announcement(n))
		for i := range 5 {
			// Of two repositories, of which the other may not be there.
			root := event(1000*n+i, nip34.KindIssue, nostr.Tag{"a", address(n)}, nostr.Tag{"a", address(n - i)})
			b.Accept(root)
			roots = append(roots, root)
		}
		if n%10 == 0 {
			b.Targets()
		}
	}
	for n := served; n < served+held; n++ {
		b.Hold(fmt.Sprint("key", n), &proto.Held{Event: announcement(n), Identifier: fmt.Sprint("r", n), Phase: proto.PhaseWaiting})
	}
	if len(b.Targets()) == 0 || b.Refused() == 0 || b.roots.count <= len(roots) {
		t.Fatalf("%d targets, %d refused, %d places", len(b.Targets()), b.Refused(), b.roots.count)
	}
	for _, root := range roots[:len(roots)/2] {
		id, ok := target.ParseID(root.ID)
		if !ok {
			t.Fatal(root.ID)
		}
		b.ForgetRoot(id)
	}
	for n := range served {
		ref, err := nip34.ParseRepoRef(address(n))
		if err != nil {
			t.Fatal(err)
		}
		if !b.Forget(ref) {
			t.Errorf("%s was not there", ref)
		}
	}
	for n := served; n < served+held; n++ {
		b.Hold(fmt.Sprint("key", n), nil)
	}
	b.TakeUnread()
	if targets := b.Targets(); len(targets) != 0 {
		t.Errorf("%d targets", len(targets))
	}
	var left []string
	for name, n := range map[string]int{
		"groups": len(b.groups), "heldIn": len(b.heldIn), "announced": len(b.announced), "places": b.roots.count, "unread": len(b.unread),
		"dirty": len(b.dirty), "wants": len(b.wants), "relays": len(b.relays), "targets": len(b.targets), "accepted": b.accepted, "rootCount": b.rootCount,
		"served": b.inverted.served, "refused": b.refused,
	} {
		if n != 0 {
			left = append(left, fmt.Sprint(name, " ", n))
		}
	}
	if len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, ", "))
	}
}
