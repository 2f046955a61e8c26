package publish_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/publish"
)

const listSubject = "grasp.roots.aa.x"

// listMessages are the messages that the stream has of the list.
func listMessages(t *testing.T, b *bus.Bus) (list []*jetstream.RawStreamMsg) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); ; seq++ {
		msg, err := stream.GetMsg(t.Context(), seq, jetstream.WithGetMsgSubject(listSubject))
		if err != nil {
			return list
		}
		list, seq = append(list, msg), msg.Sequence
	}
}

// TestManyIDsAreToldOnce: what several relays are asked for besides is told in one list, a few ids
// and what one relay has alone in the targets. Nothing of it is written again after a restart.
func TestManyIDsAreToldOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, stop := start(t, b)
	for _, step := range []struct {
		name         string
		relays, from int
		to, messages int
		lists        int
	}{
		{"a few", 5, 0, 90, 5, 0},
		{"many", 5, 0, 1000, 5 + 1, 1},
		{"a few more", 5, 0, 1010, 5, 1},
		{"a few fewer", 5, 5, 1010, 5, 1},
		{"many more", 5, 5, 1300, 5 + 1, 2},
		{"many fewer", 5, 900, 1300, 5 + 1, 3},
		{"another relay", 6, 900, 1300, 1, 3},
		{"all but a few", 6, 1295, 1300, 6 + 1, 4},
		{"all but the last relay go", 1, 1295, 1300, 5, 4},
		{"many, for one relay", 1, 1295, 2000, 1, 4},
		{"one", 1, 0, 1, 1, 4},
	} {
		wanted := relays(step.relays, ids(step.from, step.to)...)
		if n := send(t, p, wanted); n != step.messages {
			t.Errorf("%s: %d messages, want %d", step.name, n, step.messages)
		}
		same(t, b, wanted)
		if n := len(listMessages(t, b)); n != step.lists {
			t.Fatalf("%s: %d messages of lists, want %d", step.name, n, step.lists)
		}
		stop()
		p, stop = start(t, b)
		if n := send(t, p, wanted); n != 0 {
			t.Errorf("%s: %d messages after a restart", step.name, n)
		}
	}
}

// TestIDsOfManyRelaysTakeTheRoomOfOne, and earlier versions do not take the sum for theirs.
func TestIDsOfManyRelaysTakeTheRoomOfOne(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	wanted := relays(20, ids(0, 5000)...)
	send(t, p, wanted)
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if most := uint64(5000*67 + 20*1000); info.State.Bytes > most {
		t.Errorf("%d bytes, want %d at most", info.State.Bytes, most)
	}
	last, err := stream.GetLastMsgForSubject(t.Context(), "grasp.target.r0.example")
	if err != nil {
		t.Fatal(err)
	}
	if sum, want := last.Header.Get(proto.HeaderSum), short(wanted)["r0.example"].Sum(); sum == want || !strings.HasSuffix(sum, want) {
		t.Errorf("the sum is %q", sum)
	}
}

// TestAListIsWrittenAnew when it has many messages, in parts that the bus takes.
func TestAListIsWrittenAnew(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	for n := range 80 {
		send(t, p, relays(2, ids(0, 1500+100*n)...))
	}
	same(t, b, relays(2, ids(0, 1500+100*79)...))
	messages := listMessages(t, b)
	if len(messages) > 64 || messages[0].Header.Get(jetstream.MsgRollup) == "" {
		t.Errorf("%d messages, the first %v", len(messages), messages[0].Header)
	}
	for _, m := range messages {
		if len(m.Data) > 512<<10 {
			t.Errorf("a message of %d bytes", len(m.Data))
		}
	}
}

// TestReplicasPublishEachListOnce: all replicas find the same change at once.
func TestReplicasPublishEachListOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	var replicas []replica
	for range 3 {
		p, _ := start(t, b)
		replicas = append(replicas, p)
	}
	for round := 1; round <= 8; round++ {
		wanted := relays(4, ids(0, 150*round)...)
		sent := make([]int, len(replicas))
		var all sync.WaitGroup
		for i, p := range replicas {
			all.Go(func() {
				n, err := bring(t, p, wanted)
				if err != nil {
					t.Error(err)
				}
				sent[i] = n
			})
		}
		all.Wait()
		if total := sent[0] + sent[1] + sent[2]; total != 4+1 {
			t.Fatalf("round %d: %v messages, want 5 in all", round, sent)
		}
		same(t, b, wanted)
	}
}

// TestReplicasThatDisagreeAboutLists end as one, as they do about targets.
func TestReplicasThatDisagreeAboutLists(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	q, _ := start(t, b)
	var all sync.WaitGroup
	for n := range 5 {
		all.Go(func() { send(t, p, relays(2, ids(100*n, 100*n+500)...)) })
		all.Go(func() { send(t, q, relays(3, ids(100*n, 100*n+250)...)) })
		all.Wait()
		want := relays(2, ids(100*n, 100*n+500)...)
		send(t, p, want)
		send(t, q, want)
		same(t, b, want)
	}
}

// TestALostListIsWrittenAgain: the writing of a list in parts may end in the middle, when what was
// there is gone already. A replica that starts finds that.
func TestALostListIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, stream jetstream.Stream) error{
		"gone": func(t *testing.T, stream jetstream.Stream) error {
			return stream.Purge(t.Context(), jetstream.WithPurgeSubject(listSubject))
		},
		"a part of it": func(t *testing.T, stream jetstream.Stream) error {
			last, err := stream.GetLastMsgForSubject(t.Context(), listSubject)
			if err != nil {
				return err
			}
			return stream.DeleteMsg(t.Context(), last.Sequence)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			p, stop := start(t, b)
			wanted := relays(3, ids(0, 9000)...)
			send(t, p, wanted)
			stop()
			stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(listMessages(t, b)); n != 2 {
				t.Fatalf("%d messages: the test needs two parts", n)
			}
			if err := lose(t, stream); err != nil {
				t.Fatal(err)
			}
			again, _ := start(t, b)
			send(t, again, wanted)
			same(t, b, wanted)
		})
	}
}

// TestAHalfListIsFinished: a replica that has begun to write a list anew has died. Those that are
// there know what the targets say and find nothing to change in them, but what these name is gone.
func TestAHalfListIsFinished(t *testing.T) {
	t.Parallel()
	for name, relaysLeft := range map[string]int{"for several relays": 3, "for the only one that is left": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			p, _ := start(t, b)
			send(t, p, relays(3, ids(0, 9000)...))
			wanted := relays(relaysLeft, ids(0, 9000)...)
			send(t, p, wanted)
			half := target.ListSnapshot("30617:aa:x", ids(0, 9000), 512<<10)[0]
			data, err := json.Marshal(half)
			if err != nil || !half.More {
				t.Fatal("the test needs two parts", err)
			}
			msg := &nats.Msg{Subject: listSubject, Data: data, Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}}}
			ack, err := b.JS.PublishMsg(t.Context(), msg)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.WaitFor(t.Context(), ack.Sequence); err != nil {
				t.Fatal(err)
			}
			if n := send(t, p, wanted); n != 1 {
				t.Errorf("%d messages, want the other part", n)
			}
			same(t, b, wanted)
			q, _ := start(t, b)
			if n := send(t, p, wanted) + send(t, q, wanted); n != 0 && relaysLeft == 1 {
				t.Errorf("%d messages for what is published", n)
			}
			same(t, b, wanted)
		})
	}
}

// TestAListThatComesBackIsKept: another replica has withdrawn it. When it is there again, it is
// kept as long as any that nobody wants.
func TestAListThatComesBackIsKept(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	q, _ := start(t, b)
	with, without := relays(2, ids(0, 500)...), map[string]target.Target{}
	send(t, p, with)
	now := time.Now()
	q.ListsToWithdraw(short(without), now)
	p.ListsKept(0)
	send(t, p, without)
	send(t, p, without) // the first finds that nobody wants it
	if err := q.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.ListsToWithdraw(short(without), now.Add(time.Hour))
	send(t, p, with)
	if err := q.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := q.ListsToWithdraw(short(without), now.Add(2*time.Hour)); n != 0 {
		t.Error("it withdraws a list that has just come back")
	}
	if n := q.ListsToWithdraw(short(without), now.Add(3*time.Hour)); n != 1 {
		t.Error("it keeps a list that nobody wants")
	}
}

// TestListsThatNobodyWantsGo, by themselves in the end, and come back with what is wanted then.
func TestListsThatNobodyWantsGo(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	p.ListsKept(time.Hour)
	other := relays(2)
	for key := range other {
		other[key].Repos["30617:aa:y"] = other[key].Repos["30617:aa:x"]
		delete(other[key].Repos, "30617:aa:x")
	}
	send(t, p, relays(2, ids(0, 500)...))
	if n := send(t, p, other) + send(t, p, other); n != 2 {
		t.Errorf("%d messages, want one for each relay", n)
	}
	p.ListsKept(0)
	if n := send(t, p, other); n != 1 {
		t.Errorf("%d messages, want the one that withdraws the list", n)
	}
	last := listMessages(t, b)
	if len(last) != 1 || last[0].Header.Get(jetstream.MsgTTLHeader) != "11h0m0s" || last[0].Header.Get(proto.HeaderGone) != "true" {
		t.Fatalf("messages of the list: %v", last)
	}
	if n := send(t, p, other); n != 0 {
		t.Errorf("%d messages for nothing new", n)
	}
	send(t, p, relays(2, ids(300, 900)...))
	same(t, b, relays(2, ids(300, 900)...))
}

// TestWhereListsCannotBeWritten, as long as the streams or the logins are of an earlier version,
// targets tell all ids themselves.
func TestWhereListsCannotBeWritten(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Subjects = []string{proto.AnyTarget}
	if _, err := b.JS.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	p := replica{index: &index{}}
	p.Publisher = publish.New(b, p.index.roots, slog.New(slog.NewTextHandler(&text, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = p.Follow(ctx) }()
	for n := range 3 {
		wanted := relays(3, ids(0, 300*n)...)
		wanted["r0.example"].Repos["30617:bb:"+strings.Repeat("=", 300)] = target.Repo{Level: proto.LevelFull, Roots: ids(0, 400)}
		send(t, p, wanted)
		same(t, b, wanted)
	}
	if n := strings.Count(text.String(), "could not be published"); n != 1 {
		t.Errorf("told of %d times: %s", n, text.String())
	}
}

// TestARepositoryWithoutASubject, because its name is too long for one, has no list.
func TestARepositoryWithoutASubject(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	wanted := relays(3, ids(0, 300)...)
	for key := range wanted {
		wanted[key].Repos["30617:bb:"+strings.Repeat("=", proto.MaxEncodedLength)] = target.Repo{Level: proto.LevelFull, Roots: ids(0, 400)}
	}
	if n := send(t, p, wanted); n != 3+1 {
		t.Errorf("%d messages", n)
	}
	same(t, b, wanted)
}

// TestAnEarlierVersionTakesOver: it knows no lists, reads the targets without them and tells all
// root events. Whoever knows lists finds what is wanted after that, and goes on from there.
func TestAnEarlierVersionTakesOver(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, stop := start(t, b)
	wanted := relays(2, ids(0, 500)...)
	send(t, p, wanted)
	stop()
	wanted = relays(2, ids(0, 600)...)
	for key, want := range wanted {
		subject, err := proto.TargetSubject(key)
		if err != nil {
			t.Fatal(err)
		}
		m, found, err := bus.Last(t.Context(), b.JS, proto.StreamTargets, subject)
		if err != nil || !found {
			t.Fatal(found, err)
		}
		var c proto.TargetChange
		if err := json.Unmarshal(m.Data, &c); err != nil {
			t.Fatal(err)
		}
		for _, c := range target.Diff(target.Target{}.Apply(c), want, 512<<10) {
			data, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.JS.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: data, Header: nats.Header{proto.HeaderSum: {short(wanted)[key].Sum()}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(t, b, wanted)
	again, _ := start(t, b)
	if n := send(t, again, wanted); n != 0 {
		t.Errorf("%d messages for what is published", n)
	}
	wanted = relays(2, ids(50, 900)...)
	send(t, again, wanted)
	same(t, b, wanted)
}

// TestListsWithoutWhatIsNotAccepted: a root event that has gone since it was wanted is in no list,
// neither in a change of it nor in a snapshot, and is told of.
func TestListsWithoutWhatIsNotAccepted(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	for _, step := range []struct {
		name                    string
		accepted, want, further int // root events
	}{
		{"a snapshot", 200, 210, 10}, {"a change", 450, 455, 5}, {"a few", 455, 460, 5}, {"nothing but those", 455, 700, 245}, {"a change again", 900, 901, 1},
	} {
		p.index.accept(relays(1, ids(0, step.accepted)...))
		if _, err := p.Publish(t.Context(), short(relays(3, ids(0, step.want)...)), p.Seq()); err != nil {
			t.Fatal(err)
		}
		same(t, b, relays(3, ids(0, step.accepted)...))
		if n := len(p.TakeUnaccepted()); n != step.further {
			t.Errorf("%s: told of %d root events, want %d", step.name, n, step.further)
		}
		q, stop := start(t, b)
		if n := send(t, q, relays(3, ids(0, step.accepted)...)); n != 0 {
			t.Errorf("%s: another replica wrote %d messages, though nothing else is wanted", step.name, n)
		}
		stop()
	}
}

// TestWhatListsNeedIsNotAskedFor, if it was heard of, and a list is read only where what has gone
// was not.
func TestWhatListsNeedIsNotAskedFor(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	for _, step := range []struct {
		name   string
		heard  []target.ID
		wanted []target.ID
		asked  int
	}{
		{"nothing was heard of", nil, ids(0, 1000), 1},
		{"what came", ids(1000, 1200), ids(0, 1200), 0},
		{"what came and went", append(ids(0, 100), ids(1200, 1300)...), ids(100, 1300), 0},
		{"what went and was not heard of", nil, ids(300, 1300), 0},
		{"what came and was not heard of", nil, ids(200, 1300), 1},
	} {
		before := p.index.asked
		p.Heard(step.heard)
		wanted := relays(4, step.wanted...)
		if n := send(t, p, wanted); n != 4+1 {
			t.Errorf("%s: %d messages for 4 relays", step.name, n)
		}
		same(t, b, wanted)
		if n := p.index.asked - before; n != step.asked {
			t.Errorf("%s: it asked for %d repositories, want %d", step.name, n, step.asked)
		}
	}
}
