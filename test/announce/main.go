// Command announce tells a Tendril on this machine of the git repository in the working directory:
// it signs an announcement (30617) and a state event (30618) with its branches and tags, sends
// both, and prints what the relay answers. The README's tour uses it.
//
//	go run ./test/announce -C <work tree> -id <identifier> [-relay ws://127.0.0.1:7334[,<another>...]]
//
// Without -relay it is the one at NGIT_DOMAIN or NGIT_BIND_ADDRESS. With several relays the
// announcement lists all of them, and the first is told. It exits with 1 if an event is refused.
//
// The key is made at the first run and lies in .git/nostr-key of the work tree. Use it for nothing
// else.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("announce: ")
	dir := flag.String("C", ".", "work tree")
	identifier := flag.String("id", "", "identifier of the repository, its d tag")
	here := cmp.Or(os.Getenv("NGIT_DOMAIN"), os.Getenv("NGIT_BIND_ADDRESS"), "127.0.0.1:7334")
	listed := flag.String("relay", "ws://"+here, "relays of GRASP servers, comma-separated; their hosts must be what the servers call themselves (NGIT_DOMAIN)")
	flag.Parse()
	if *identifier == "" {
		log.Fatal("-id is missing")
	}
	who := key(filepath.Join(*dir, ".git", "nostr-key"))
	relays, clone := strings.Split(*listed, ","), nostr.Tag{"clone"}
	for _, relay := range relays {
		// A GRASP server has relay and repositories on one port: ws becomes http, wss https.
		clone = append(clone, strings.Replace(relay, "ws", "http", 1)+"/"+who.Npub+"/"+url.PathEscape(*identifier)+".git")
	}
	refs := map[string]string{"HEAD": "ref: " + git(*dir, "symbolic-ref", "HEAD")}
	for line := range strings.Lines(git(*dir, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	announcement := who.Sign(30617, "", nostr.Tag{"d", *identifier}, nostr.Tag{"name", *identifier}, clone, append(nostr.Tag{"relays"}, relays...))
	state := who.State(*identifier, refs)
	taken := true
	for _, event := range []*nostr.Event{announcement, state} {
		answer, ok, err := send(relays[0], event)
		check(err)
		fmt.Printf("%d %s\n", event.Kind, answer)
		taken = taken && ok
	}
	if !taken {
		log.Fatalf("the relay %s has refused an event", relays[0])
	}
	fmt.Println(clone[1])
	// Times of events have seconds, and only a newer state takes the place of another: the next one
	// must not be as old as this.
	time.Sleep(time.Second)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func git(dir string, args ...string) string {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		log.Fatalf("git %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// send returns the relay's answer to an event, as it came, and whether it takes the event.
func send(relay string, event *nostr.Event) (answer string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, relay, nil)
	if err != nil {
		return "", false, err
	}
	defer ws.CloseNow()
	message, err := json.Marshal([]any{"EVENT", event})
	if err == nil {
		err = ws.Write(ctx, websocket.MessageText, message)
	}
	for err == nil {
		var said []byte
		var parts []any
		_, said, err = ws.Read(ctx)
		if json.Unmarshal(said, &parts) == nil && len(parts) > 2 && parts[0] == "OK" && parts[1] == event.ID {
			return string(said), parts[2] == true, nil
		}
	}
	return "", false, err
}

// key reads the work tree's key, or makes it.
func key(path string) *fixture.Person {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(gonostr.GeneratePrivateKey())
		err = os.WriteFile(path, data, 0o600)
	}
	check(err)
	return fixture.PersonOf(string(data))
}
