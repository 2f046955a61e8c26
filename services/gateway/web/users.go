package web

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

const (
	// countFor is how long the number of users on the front page is kept.
	countFor = time.Minute
	// mostUsers is where counting users ends.
	mostUsers = 100_000
)

// users counts the users whose grasp list (NIP-34, kind 10317) names this service, up to mostUsers.
// It reads no events: a list names a service by its URL, of which there are few spellings.
func (p *Pages) users(ctx context.Context, v *eventdb.View) (n int, err error) {
	lists := nostr.Filter{Kinds: []int{nostr.KindUserGraspList}, Tags: nostr.TagMap{"g": spellings(p.rules.Domain())}}
	for _, err := range v.IDs(ctx, lists) {
		if err != nil {
			return 0, fmt.Errorf("count users: %w", err)
		}
		if n++; n == mostUsers {
			break
		}
	}
	return n, nil
}

// spellings are the ways in which clients write the URL of a service.
func spellings(domain string) []string {
	all := []string{domain}
	for _, scheme := range []string{"wss", "ws", "https", "http"} {
		url := scheme + "://" + domain
		all = append(all, url, url+"/")
	}
	return all
}
