package main

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

// errNoWorker: no worker holds the shard.
var errNoWorker = errors.New("no purgatory worker answers")

// parseRepo reads a repository as people name it: npub1…/identifier, naddr1…, or
// 30617:<pubkey>:<identifier>.
func parseRepo(name string) (ref nostr.RepoRef, err error) {
	if strings.HasPrefix(name, "30617:") {
		return nostr.ParseRepoRef(name)
	}
	prefix, identifier, slash := strings.Cut(name, "/")
	kind, value, err := nip19.Decode(prefix)
	switch v := value.(type) {
	case string:
		if err == nil && kind == "npub" && slash {
			ref = nostr.RepoRef{PubKey: v, Identifier: identifier}
		}
	case gonostr.EntityPointer:
		if err == nil && v.Kind == nostr.KindAnnouncement && !slash {
			ref = nostr.RepoRef{PubKey: v.PublicKey, Identifier: v.Identifier}
		}
	}
	if ref.PubKey == "" {
		return ref, fmt.Errorf("%.200q is no repository: want npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier>", name)
	}
	return ref, nostr.CheckIdentifier(ref.Identifier)
}

// nameRepo is how people write a repository.
func nameRepo(ref string) string {
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

// listRepos returns the repositories that lie on the disk and are not hosted, of all shards.
// missing says for how many shards no worker answered.
func listRepos(ctx context.Context, b *bus.Bus) (list []proto.RepoStatus, missing int, err error) {
	list = []proto.RepoStatus{} // none is [] in JSON, not null
	for shard := range proto.Shards {
		for after := ""; ; {
			page, err := askShard(ctx, b, proto.RepoList, shard, after)
			if errors.Is(err, errNoWorker) {
				missing++
				break
			}
			if err != nil {
				return nil, 0, err
			}
			if len(page) == 0 || page[len(page)-1].Ref <= after {
				break
			}
			list, after = append(list, page...), page[len(page)-1].Ref
		}
	}
	return list, missing, nil
}

// askRepo asks for one repository.
func askRepo(ctx context.Context, b *bus.Bus, verb proto.RepoVerb, ref nostr.RepoRef) (proto.RepoStatus, error) {
	list, err := askShard(ctx, b, verb, proto.ShardOf(ref.Identifier), ref.String())
	if err != nil {
		return proto.RepoStatus{}, err
	}
	if len(list) != 1 || list[0].Ref != ref.String() {
		return proto.RepoStatus{}, fmt.Errorf("the answer about %s is about something else", nameRepo(ref.String()))
	}
	return list[0], nil
}

func askShard(ctx context.Context, b *bus.Bus, verb proto.RepoVerb, shard int, ref string) ([]proto.RepoStatus, error) {
	question, err := json.Marshal(proto.RepoQuery{Ref: ref})
	if err != nil {
		return nil, err
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
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf("shard %s: %w", proto.ShardName(shard), errNoWorker)
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
