package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/test/fixture"
)

func TestRelease(t *testing.T) {
	run(t, `
		a = alice here 100
		s = alice state 200
		older = alice state 150
		bobs = bob state 150
		pr = bob 1618 100 c=COMMIT a=alice/tree
		carols = carol here 100
		deletion = alice 5 200 e=a

		announcement | waiting a | release a | accepted drops a
		state | accepted a waiting s | release s | accepted drops s
		state, and older ones of its author with it | accepted a waiting s older bobs | release s | accepted drops older superseded, s
		older state alone | accepted a waiting s older | release older | accepted drops older
		pull request | accepted a waiting 0s pr | release pr | accepted drops pr
		accepted already | accepted a | release a | duplicate
		not held any more | | release a | rejected not_held invalid forgotten
		superseded state | accepted a s waiting older | release older | duplicate drops older superseded
		state without authority by now | accepted carols waiting s | release s | rejected unauthorized restricted misses by:30617:alice:tree drops s | restricted: author not authorized
		pull request without repository by now | waiting 0s pr | release pr | rejected orphan restricted misses 30617:alice:tree, d:tree drops pr
		deleted by now | accepted deletion waiting a | release a | rejected deleted blocked drops a next deletion renewed
		author blacklisted by now | waiting a --event-blacklist=@alice | release a | rejected blacklisted blocked drops a
		not whitelisted by now | waiting a --repository-whitelist=bush | release a | rejected not_whitelisted blocked misses listed:30617:alice:tree drops a
		our domain is another by now | waiting a --domain=new.example.com | release a | rejected service_not_listed invalid misses listed:30617:alice:tree drops a
	`)
}

func TestExpireAndExtend(t *testing.T) {
	run(t, `
		a = alice here 100
		s = alice state 200
		other = carol here 100

		announcement falls silent | waiting 0s a | expire a | done a silent 24h0m0s
		silent announcement goes | silent a | expire a | done drops a previously expired
		its states go with it | silent a waiting s | expire a | done drops a previously expired, s previously expired
		but not while another owner's announcement stays | silent a waiting s other | expire a | done drops a previously expired
		state goes | accepted a waiting 0s s | expire s | done drops s previously expired
		a clock that was restarted is not over | accepted a waiting 10m s | expire s | done
		clocks may differ a little | accepted a waiting 4s s | expire s | done drops s previously expired
		with a reason it goes at once | accepted a waiting 10m s | expire s superseded by another's | done drops s superseded by another's
		not held | | expire s | done
		extend | waiting 0s s | extend s | done s
		extend a silent announcement: revived | silent a | extend a | done a
	`)
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	s := script{}
	s["a"] = event("alice here 100 maintainers=bob")
	s["comment"], s["deletion"], s["state"] = s.event("bob 1111 100 e=a a=alice/tree"), s.event("bob 5 100 e=a"), event("alice state 1")
	for _, row := range fixture.Rows(`
		a        | accepted  | 30617:alice:tree a by:30617:alice:tree d:tree listed:30617:bob:tree
		a        | held      | by:30617:alice:tree d:tree listed:30617:bob:tree
		comment  | accepted  | comment named:30617:alice:tree named:a
		state    | held      |
		deletion | accepted  |
		a        | rejected  |
		a        | duplicate |
	`) {
		if got := strings.Join(s.named(policy.Arrivals(&policy.Candidate{Event: s[row[0]]}, proto.Outcome(row[1]))), " "); got != row[2] {
			t.Errorf("%v: %q", row, got)
		}
	}
}

// An orphan may name any number of events; what is remembered of it is bounded.
func TestMissingIsBounded(t *testing.T) {
	t.Parallel()
	line := "bob 1 100"
	for n := range 3000 {
		line += " a=30617:" + person(n+10) + ":" + strings.Repeat("x", n)
	}
	d, bytes := rulesOf(t, policy.Bounds{}).Decide(&world{}, synced(event(line))), 0
	for _, key := range d.Missing {
		bytes += len(key)
	}
	if d.Outcome != proto.Rejected || len(d.Missing) == 0 || len(d.Missing) > 64 || bytes > 64*512 {
		t.Errorf("%s, %d keys of %d bytes", d.Outcome, len(d.Missing), bytes)
	}
}

// TestRemove: with a repository goes what was accepted for it alone, by any author.
func TestRemove(t *testing.T) {
	run(t, `
		a = alice here 100
		gone = alice elsewhere 200
		goneNamesBob = alice elsewhere 100 maintainers=bob
		namesBob = alice here 100 maintainers=bob
		namesCarol = alice here 100 maintainers=carol
		carols = carol here 100
		carolNamesAlice = carol here 100 maintainers=alice
		carolNamesBob = carol here 100 maintainers=bob
		bobAcceptsAlice = bob elsewhere 100 maintainers=alice
		bobAcceptsCarol = bob elsewhere 100 maintainers=carol
		aliceAcceptsBob = alice elsewhere 100 maintainers=bob
		carolAcceptsAlice = carol elsewhere 100 maintainers=alice,bob
		bobAcceptsBoth = bob elsewhere 100 maintainers=carol,alice
		aliceAcceptsCarol = alice elsewhere 100 maintainers=carol
		carolGoneNamesBob = carol elsewhere 100 maintainers=bob
		bobGoneNamesAlice = bob elsewhere 100 maintainers=alice
		s = alice state 100
		bobs = bob state 100
		issue = bob 1621 100 a=alice/tree
		both = bob 1621 100 a=alice/tree a=carol/tree
		comment = carol 1111 100 E=issue
		pr = bob 1618 100 c=COMMIT a=alice/tree
		quoting = bob 1618 100 c=COMMIT a=alice/tree q=carol/tree
		offered = bob 1618 100 c=COMMIT a=alice/tree clone=https://git.example.com/prs/@bob/tree.git
		deletion = bob 5 200 e=issue
		expiring = alice 30618 100 d=tree expiration=2000000000
		list = bob 10317 100

		state of an archived repository | accepted gone s --archive-all | remove s | done
		pull request that is offered below /prs/ | accepted offered | remove offered | done
		what is not accepted | | remove s | done
		held, not accepted | waiting a s | remove s | done
		state without any announcement | accepted s | remove s | done removed
		state of a hosted repository | accepted a s | remove s | done
		state of a repository that waits | accepted s waiting a | remove s | done
		state of one that has moved away | accepted gone s | remove s | done removed
		state of another's repository | accepted carols s | remove s | done removed
		a maintainer's state of one that waits | waiting namesBob accepted bobs bobAcceptsAlice | remove bobs | done
		an invited one's state of one that waits | waiting namesBob accepted bobs | remove bobs | done removed
		a maintainer's state of one that has moved away | accepted goneNamesBob bobs | remove bobs | done removed
		a maintainer's maintainer's state | accepted namesCarol carolAcceptsAlice bobAcceptsCarol bobs | remove bobs | done
		issue of nothing | accepted issue | remove issue | done removed
		issue of a repository that is here | accepted a issue | remove issue | done
		issue of another's repository too | accepted carols both | remove both | done
		issue that a comment names | accepted issue comment | remove issue | done
		issue of a repository that waits | accepted issue waiting a | remove issue | done
		issue of a maintainer of a repository that is here | accepted carolNamesAlice aliceAcceptsCarol issue | remove issue | done
		issue that only a deletion request names | accepted issue deletion | remove issue | done removed
		pull request of nothing | accepted pr | remove pr | done removed
		pull request for a maintainer's maintainer | accepted carolNamesBob bobAcceptsBoth aliceAcceptsBob pr | remove pr | done
		pull request that quotes one that waits | waiting carols accepted quoting | remove quoting | done
		state that expires by itself | accepted expiring | remove expiring | done
		announcement | accepted gone | remove gone | done
		deletion request | accepted deletion | remove deletion | done
		grasp list | accepted list | remove list | done
	`)
}

// TestSizes: what is larger than events of its kind may be is refused, from wherever it comes.
func TestSizes(t *testing.T) {
	t.Parallel()
	rules, w := rulesOf(t, policy.Bounds{}), accepts(event("alice here 50"), event("alice here:bush 50"))
	for kind, most := range map[string]int{"30617": 64 << 10, "30618": 512 << 10, "1618": 256 << 10, "5": 192 << 10, "1617": 512 << 10, "1": 192 << 10, "10317": 16 << 10, "10318": 16 << 10} {
		for _, bytes := range []int{most, most + 1} {
			ev := event("alice " + kind + " 100 d=bush clone=https://git.example.com/@alice/bush.git relays=wss://git.example.com c=COMMIT a=alice/tree")
			ev.Content = strings.Repeat("x", bytes-len(ev.String()))
			ev.ID = ev.GetID()
			c := synced(ev)
			c.Raw = []byte(ev.String())
			d := rules.Decide(w, c)
			if (bytes > most) != (d.Reason == "invalid" && d.Remember && strings.HasPrefix(d.Message, "invalid: ")) || len(c.Raw) != bytes || bytes == most && d.Outcome == proto.Rejected {
				t.Errorf("kind %s of %d bytes: %s %q", kind, bytes, d.Outcome, d.Message)
			}
		}
	}
}

// TestOwnersHaveRoom: strangers fill purgatory, and a state of a served repository is held all the
// same; it can only be refused to an author who holds too much already.
func TestOwnersHaveRoom(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, policy.Bounds{Bytes: 100, Reserved: 100_000, Author: policy.Load{Events: 2}, Client: policy.Load{Events: 1}})
	w := accepts(event("alice here 50 maintainers=bob"), event("bob elsewhere 50 maintainers=alice")).
		hold(proto.PhaseWaiting, now, event("carol here 100"))
	for _, row := range fixture.Rows(`
		alice state 100     |
		alice state 101     |
		bob state 100       |
		alice state 102     | rate-limited: too much of this author
		dave here 100       | rate-limited: too much waits
		carol state 100     | rate-limited: too much waits
		alice here:bush 100 | rate-limited: too much waits
	`) {
		c := user(event(row[0]))
		c.Client = "192.0.2.1"
		d := rules.Decide(w, c)
		if held := d.Outcome == proto.HeldBack && d.Hold[0].Reserved && d.Hold[0].Client == c.Client; held != (row[1] == "") || d.Remember || len(d.Drop) > 0 || !strings.HasPrefix(d.Message, row[1]) {
			t.Errorf("%v: %s %q, drops %d", row, d.Outcome, d.Message, len(d.Drop))
		}
		w.held = append(w.held, d.Hold...)
	}
}

// TestWhatMakesRoomTakesItsOwnAlong: with an announcement that has to go, its states and the
// announcements that it vouched for go; and nothing that would be left without its announcement is
// taken for it.
func TestWhatMakesRoomTakesItsOwnAlong(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, policy.Bounds{Bytes: 6000})
	silent := func() *world { return new(world).hold(proto.PhaseSilent, now, event("alice here 100 maintainers=bob")) }
	w := silent().hold(proto.PhaseVouched, now, event("bob elsewhere 100")).hold(proto.PhaseWaiting, now, event("alice state 100"))
	d := rules.Decide(w, user(event("carol here:bush 100 description="+strings.Repeat("x", 1000))))
	if d.Outcome != proto.HeldBack || len(d.Drop) != 3 {
		t.Errorf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
	d = rules.Decide(silent(), user(event("alice 30618 100 d=tree t="+strings.Repeat("x", 4000))))
	if d.Outcome != proto.Rejected || d.Remember || len(d.Drop) != 0 {
		t.Errorf("%s %q drops %d", d.Outcome, d.Message, len(d.Drop))
	}
}

// asked counts how often it is asked for the announcements of an identifier.
type asked struct {
	*world
	times int
}

func (a *asked) Announced(identifier string) held.Source {
	a.times++
	return a.world.Announced(identifier)
}

// TestAPullRequestAsksLittle: whom each of a hundred owners speaks for would take long to find out.
func TestAPullRequestAsksLittle(t *testing.T) {
	t.Parallel()
	ev := event("bob 1618 100 c=" + strings.Repeat("1", 40))
	for n := range 100 {
		ev.Tags = append(ev.Tags, nostr.Tag{"a", fmt.Sprintf("30617:%064d:tree", n)})
	}
	k := &asked{world: &world{}}
	rulesOf(t, policy.Bounds{}).Decide(k, user(ev))
	if k.times < 100 || k.times > 130 {
		t.Errorf("announcements were asked for %d times", k.times)
	}
}
