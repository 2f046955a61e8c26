// Command announce tells a Tendril on this machine of the git repository in the working directory:
// it signs an announcement (30617) and a state event (30618) with its branches and tags, sends
// both, and prints what the relay answers. The README's tour uses it.
//
//	go run ./test/announce -C <work tree> -id <identifier> [-relay ws://127.0.0.1:7334[,<another>...]]
//
// Without -relay it is the one at NGIT_DOMAIN or NGIT_BIND_ADDRESS. With several relays the
// announcement lists all of them, and the first is told. It exits with 1 if an event is refused.
//
// The key is made at the first run and lies in .git/nostr-key of the work tree: a toy, to be used
// for nothing else.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("C", ".", "work tree")
	identifier := flag.String("id", "", "identifier of the repository, its d tag")
	here := cmp.Or(os.Getenv("NGIT_DOMAIN"), os.Getenv("NGIT_BIND_ADDRESS"), "127.0.0.1:7334")
	relays := flag.String("relay", "ws://"+here, "relays of GRASP servers, comma-separated; their hosts must be what the servers call themselves (NGIT_DOMAIN)")
	flag.Parse()
	if *identifier == "" {
		log.Fatal("announce: -id is missing")
	}
	if err := announce(*dir, *identifier, strings.Split(*relays, ",")); err != nil {
		log.Fatalf("announce: %v", err)
	}
}

func announce(dir, identifier string, relays []string) error {
	secret, npub, err := key(filepath.Join(dir, ".git", "nostr-key"))
	if err != nil {
		return err
	}
	clone := nostr.Tag{"clone"}
	for _, relay := range relays {
		// A GRASP server has relay and repositories on one port: ws becomes http, wss https.
		clone = append(clone, strings.Replace(relay, "ws", "http", 1)+"/"+npub+"/"+url.PathEscape(identifier)+".git")
	}
	state, err := state(dir, identifier)
	if err != nil {
		return err
	}
	announcement := nostr.Event{Kind: 30617, Tags: nostr.Tags{
		{"d", identifier}, {"name", identifier}, clone, append(nostr.Tag{"relays"}, relays...),
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var refused error
	for _, event := range []nostr.Event{announcement, state} {
		event.CreatedAt = nostr.Now()
		if err := event.Sign(secret); err != nil {
			return err
		}
		answer, ok, err := send(ctx, relays[0], event)
		if err != nil {
			return err
		}
		fmt.Printf("%d %s\n", event.Kind, answer)
		if !ok {
			refused = fmt.Errorf("the relay %s has refused an event", relays[0])
		}
	}
	if refused != nil {
		return refused
	}
	fmt.Println(clone[1])
	// Times of events have seconds, and only a newer state takes another's place: the next one must
	// not be as old as this.
	time.Sleep(time.Second)
	return nil
}

// state says where the branches and tags are, and which branch HEAD is.
func state(dir, identifier string) (nostr.Event, error) {
	event := nostr.Event{Kind: 30618, Tags: nostr.Tags{{"d", identifier}}}
	refs, err := git(dir, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return event, err
	}
	for line := range strings.Lines(refs) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		event.Tags = append(event.Tags, nostr.Tag{name, id})
	}
	head, err := git(dir, "symbolic-ref", "HEAD")
	event.Tags = append(event.Tags, nostr.Tag{"HEAD", "ref: " + strings.TrimSpace(head)})
	return event, err
}

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// send returns the relay's answer to an event, as it came, and whether it takes the event.
func send(ctx context.Context, relay string, event nostr.Event) (answer string, ok bool, err error) {
	ws, _, err := websocket.Dial(ctx, relay, nil)
	if err != nil {
		return "", false, err
	}
	defer ws.CloseNow()
	message, err := gonostr.EventEnvelope{Event: event}.MarshalJSON()
	if err != nil {
		return "", false, err
	}
	if err := ws.Write(ctx, websocket.MessageText, message); err != nil {
		return "", false, err
	}
	for {
		_, said, err := ws.Read(ctx)
		if err != nil {
			return "", false, err
		}
		var parts []any
		if json.Unmarshal(said, &parts) == nil && len(parts) > 2 && parts[0] == "OK" && parts[1] == event.ID {
			return string(said), parts[2] == true, nil
		}
	}
}

// key reads the work tree's key, or makes it.
func key(path string) (secret, npub string, err error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		data = []byte(gonostr.GeneratePrivateKey())
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		return "", "", err
	}
	public, err := gonostr.GetPublicKey(string(data))
	if err != nil {
		return "", "", err
	}
	npub, err = nip19.EncodePublicKey(public)
	return string(data), npub, err
}
