package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// maxRefusals is how many refusals a replica remembers, and maxTold how many one answer has.
	maxRefusals = 4096
	maxTold     = 20
)

// refusals is what this replica refused lately, the last at the end. Most of it is in no stream:
// any client could fill the disk with it.
type refusals struct {
	mu  sync.Mutex
	all []proto.Refusal
}

func (r *refusals) add(ev *nostr.Event, told proto.Refusal) {
	told.Event, told.Kind = ev.ID, ev.Kind
	// What a stranger wrote stays in memory here, so it must be short: no repository has a longer
	// identifier.
	told.Reason = strings.Clone(told.Reason)
	repository := ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState
	if repository && nostr.CheckIdentifier(ev.Tags.GetD()) == nil {
		told.Ref = nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all[max(0, len(r.all)+1-maxRefusals):], told)
}

// find returns what is asked for, the last first.
func (r *refusals) find(q proto.Why) (found []proto.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, told := range slices.Backward(r.all) {
		if (q.Event != "" && told.Event == q.Event || q.Ref != "" && told.Ref == q.Ref) && len(found) < maxTold {
			found = append(found, told)
		}
	}
	return found
}

// answer answers operators until ctx ends.
func (r *refusals) answer(ctx context.Context, n *node.Node) error {
	sub, err := n.Bus.Conn.Subscribe(proto.SubjectWhy, func(m *nats.Msg) {
		var q proto.Why
		if json.Unmarshal(m.Data, &q) != nil {
			return
		}
		data, _ := json.Marshal(proto.WhyAnswer{Refusals: r.find(q), Ban: banOf(n, q)}) // texts and times
		if err := m.Respond(data); err != nil {
			n.Log.Debug("an operator could not be answered", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("answer operators: %w", err)
	}
	<-ctx.Done()
	_ = sub.Unsubscribe() // it fails only where the connection has ended
	return nil
}

// banOf is the ban that hides what is asked about; nil: none does.
func banOf(n *node.Node, q proto.Why) *proto.Ban {
	view := n.Index.View()
	defer view.Close()
	name, _ := view.Hidden(q.Event)
	ban := n.Bans.Named(cmp.Or(name, "event."+q.Event))
	if ref, err := nostr.ParseRepoRef(q.Ref); err == nil {
		ban = n.Bans.Repository(ref)
	}
	if ban == nil {
		return nil
	}
	told := ban.Ban
	told.What, told.Reason = ban.String(), ban.Message()
	return &told
}
