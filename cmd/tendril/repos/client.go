// Package repos asks the purgatory workers of a running system about its repositories.
package repos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// statusHeader is the header by which NATS says that nobody listens.
const (
	statusHeader = "Status"
	noResponders = "503"
)

// ErrNobody: no worker holds the shard, or it is of an earlier version.
var ErrNobody = errors.New("no purgatory worker answers")

// Parse reads a repository as people name it: npub1…/identifier, naddr1…, or
// 30617:<pubkey>:<identifier>.
func Parse(name string) (nostr.RepoRef, error) {
	if strings.HasPrefix(name, "30617:") {
		return nostr.ParseRepoRef(name)
	}
	prefix, identifier, slash := strings.Cut(name, "/")
	kind, value, err := nip19.Decode(prefix)
	if err != nil {
		return nostr.RepoRef{}, fmt.Errorf("%.200q is no repository: want npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>", name)
	}
	var ref nostr.RepoRef
	switch v := value.(type) {
	case string:
		if kind != "npub" || !slash {
			return ref, fmt.Errorf("%.200q is no repository: want an npub, a slash and the identifier", name)
		}
		ref = nostr.RepoRef{PubKey: v, Identifier: identifier}
	case gonostr.EntityPointer:
		if v.Kind != nostr.KindAnnouncement || slash {
			return ref, fmt.Errorf("%.200q does not name a repository announcement (kind 30617)", name)
		}
		ref = nostr.RepoRef{PubKey: v.PublicKey, Identifier: v.Identifier}
	default:
		return ref, fmt.Errorf("%.200q is no repository: want npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>", name)
	}
	return ref, nostr.CheckIdentifier(ref.Identifier)
}

// Name is how people write a repository.
func Name(ref string) string {
	parsed, err := nostr.ParseRepoRef(ref)
	if err != nil {
		return ref
	}
	npub, err := nip19.EncodePublicKey(parsed.PubKey)
	if err != nil {
		return ref
	}
	return npub + "/" + parsed.Identifier
}

// List returns the repositories that lie on the disk and are not hosted, of all shards. missing are
// the shards for which no worker answered.
func List(ctx context.Context, b *bus.Bus) (list []proto.RepoStatus, missing []int, err error) {
	list = []proto.RepoStatus{} // none is [] in JSON, not null
	for shard := range proto.Shards {
		for after := ""; ; {
			page, err := ask(ctx, b, proto.RepoList, shard, after)
			if errors.Is(err, ErrNobody) {
				missing = append(missing, shard)
				break
			}
			if err != nil {
				return nil, nil, err
			}
			if len(page) == 0 || page[len(page)-1].Ref <= after {
				break
			}
			list, after = append(list, page...), page[len(page)-1].Ref
		}
	}
	return list, missing, nil
}

// Do asks for one repository.
func Do(ctx context.Context, b *bus.Bus, verb proto.RepoVerb, ref nostr.RepoRef) (proto.RepoStatus, error) {
	repos, err := ask(ctx, b, verb, proto.ShardOf(ref.Identifier), ref.String())
	if err != nil {
		return proto.RepoStatus{}, err
	}
	if len(repos) != 1 || repos[0].Ref != ref.String() {
		return proto.RepoStatus{}, fmt.Errorf("the answer about %s is about something else", Name(ref.String()))
	}
	return repos[0], nil
}

func ask(ctx context.Context, b *bus.Bus, verb proto.RepoVerb, shard int, ref string) ([]proto.RepoStatus, error) {
	question, err := json.Marshal(proto.RepoQuery{Ref: ref})
	if err != nil {
		return nil, fmt.Errorf("ask about a repository: %w", err)
	}
	inbox := proto.RepoAnswerSubject(nuid.Next())
	answers, err := b.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("ask about a repository: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := b.Conn.PublishMsg(&nats.Msg{Subject: proto.RepoSubject(verb, shard), Reply: inbox, Data: question}); err != nil {
		return nil, fmt.Errorf("ask about a repository: %w", err)
	}
	m, err := answers.NextMsgWithContext(ctx)
	if errors.Is(err, nats.ErrNoResponders) || err == nil && m.Header.Get(statusHeader) == noResponders {
		return nil, fmt.Errorf("shard %s: %w", proto.ShardName(shard), ErrNobody)
	}
	if err != nil {
		return nil, fmt.Errorf("wait for an answer: %w", err)
	}
	var a proto.RepoAnswer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	return a.Repos, nil
}
