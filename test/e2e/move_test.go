package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// tool runs the program beside a running one and gives what it prints.
func tool(t *testing.T, p *world.Tendril, args ...string) string {
	t.Helper()
	out, err := p.Tool(args...)
	if err != nil {
		t.Fatalf("tendril %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	t.Logf("$ tendril %s\n%s", strings.Join(args, " "), out)
	return out
}

// exported reads the ids of exported events. The profile and the relay list of the service, which it
// stores by itself, are taken out of the file.
func exported(t *testing.T, path string) (ids []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var kept strings.Builder
	defer func() { must(t, os.WriteFile(path, []byte(kept.String()), 0o600)) }()
	for line := range strings.Lines(string(text)) {
		var ev nostr.Event
		must(t, json.Unmarshal([]byte(line), &ev))
		if ok, err := ev.CheckSignature(); !ok || err != nil {
			t.Errorf("an exported event is not as it was signed: %s", line)
		}
		if ev.Kind != nostr.KindProfile && ev.Kind != nostr.KindRelayList {
			ids = append(ids, ev.ID)
			kept.WriteString(line)
		}
	}
	return ids
}

// TestExportAndImport moves everything from one system to another while both run: events in any
// order, repositories with branches, tags and the commits of pull requests, and what waits for its
// git data.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	key := map[string]string{"NGIT_RELAY_OWNER_NSEC": fixture.NewPerson().Secret} // a service moves with its key
	old, empty := world.Start(t, key), world.Start(t, key)
	owner, guest := fixture.NewPerson(), fixture.NewPerson()
	work := world.NewWorkTree(t)
	work.Git("tag", "-a", "v1", "-m", "version 1")
	for _, name := range []string{"mine", "with space"} {
		old.Holds(owner.Announce(name), owner.State(name, work.Refs()))
		work.Git("push", "-q", "--follow-tags", old.URL+nostr.RepositoryURLPath(owner.Npub, name), "main", "v1")
	}
	address := owner.Repo("mine")
	issue := guest.Sign(1621, "broken", address)
	comment := guest.Comment("nor here", issue, issue)
	old.Accepts(issue, comment, owner.Sign(10317, "", nostr.Tag{"g", "wss://" + fixture.Domain}))
	work.Git("checkout", "-q", "-b", "fix")
	tip := work.Commit("a fix")
	pull := guest.Pull("please", tip, address)
	old.Holds(pull)
	work.Git("push", "-q", old.Repo(owner, "mine"), "fix:refs/nostr/"+pull.ID)
	waiting := owner.Announce("later")
	old.Holds(waiting)

	dir := t.TempDir()
	events, repositories, refused := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "git"), filepath.Join(dir, "refused.jsonl")
	gitData := filepath.Join(old.Dir, "data", "git")
	tool(t, old, "export", "--held", "-o", events, "--git", repositories, "--git-data-path", gitData)
	ids := exported(t, events)
	if len(ids) != 9 || !slices.Contains(ids, waiting.ID) || !slices.Contains(ids, pull.ID) {
		t.Fatalf("%d events are exported: %q", len(ids), ids)
	}
	fetched := filepath.Join(dir, "fetched")
	tool(t, old, "export", "-o", os.DevNull, "--git", fetched, "--from", old.URL)
	for _, name := range []string{"mine", "with%20space"} {
		copied, same := filepath.Join(repositories, owner.Npub, name+".git"), filepath.Join(fetched, owner.Npub, name+".git")
		world.Git(t, copied, "fsck", "--strict")
		if a, b := world.Git(t, dir, "ls-remote", copied), world.Git(t, dir, "ls-remote", same); a != b {
			t.Errorf("%s of the folder has\n%s\nand of the server\n%s", name, a, b)
		}
	}
	reverse(t, events) // the worst order there is

	out := tool(t, empty, "import", events, "--git", repositories, "--server", empty.URL, "--refused", refused)
	if why, _ := os.ReadFile(refused); len(why) > 0 {
		t.Fatalf("refused:\n%s", why)
	}
	for _, want := range []string{"9  lines read", "8  accepted", "1  held", "0  refused", "2  repositories pushed", "1  commits of pull requests pushed"} {
		if !strings.Contains(out, want) {
			t.Errorf("the import does not say %q", want)
		}
	}
	copied := filepath.Join(dir, "copied.jsonl")
	tool(t, empty, "export", "--held", "-o", copied, "-q")
	if got := exported(t, copied); !maps.Equal(set(got), set(ids)) {
		t.Errorf("%d events are there, want %d", len(got), len(ids))
	}
	for _, name := range []string{"mine", "with%20space"} {
		path := "/" + owner.Npub + "/" + name + ".git"
		if was, is := world.Git(t, dir, "ls-remote", old.URL+path), world.Git(t, dir, "ls-remote", empty.URL+path); was != is || !strings.Contains(is, "v1^{}") {
			t.Errorf("%s has\n%s\nand had\n%s", name, is, was)
		}
	}
	out = tool(t, empty, "import", events, "--git", repositories, "--server", empty.URL, "--json", "-q")
	var again struct{ Known, Held, Refused, Accepted int }
	if err := json.Unmarshal([]byte(out), &again); err != nil || again.Known != 8 || again.Held != 1 || again.Accepted+again.Refused != 0 {
		t.Errorf("once more: %+v, %v", again, err)
	}
	again.Known = 0
	out = tool(t, empty, "import", old.Relay(), "--json", "-q") // what it serves
	if err := json.Unmarshal([]byte(out), &again); err != nil || again.Known < 8 || again.Held+again.Accepted+again.Refused != 0 {
		t.Errorf("from the relay: %+v, %v", again, err)
	}
	checkAndRepair(t, empty, owner.Npub, pull.ID)
}

// checked runs `tendril check` on a system's folders and gives its exit status and what it prints.
func checked(t *testing.T, p *world.Tendril, args ...string) (status int, out string) {
	t.Helper()
	env := world.Settings()
	env["NGIT_NATS_LISTEN"] = strings.TrimPrefix(p.NATS, "nats://")
	out, err := world.RunToEnd(t, p.Dir, env, append([]string{"check", "-q"}, args...)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else {
		must(t, err)
	}
	t.Logf("$ tendril check %s; echo $?\n%s%d", strings.Join(args, " "), out, status)
	return status, out
}

// checkAndRepair: a system is clean as it runs and when it was stopped; what is broken then is
// found and mended, and it runs on.
func checkAndRepair(t *testing.T, p *world.Tendril, npub, pull string) {
	t.Helper()
	if status, out := checked(t, p); status != 0 || !strings.Contains(out, "index-up is in use") {
		t.Errorf("as it runs it is not clean")
	}
	if status, out := checked(t, p, "--repair"); status != 2 || !strings.Contains(out, "needs the system stopped") {
		t.Error("what runs is repaired")
	}
	must(t, p.Stop())
	if status, out := checked(t, p); status != 0 || !strings.Contains(out, " events in the log, 1 index, 3 repositories") {
		t.Errorf("stopped it is not clean")
	}
	root := filepath.Join(p.Dir, "data", "git")
	mine := filepath.Join(root, npub, "mine.git")
	world.Git(t, mine, "update-ref", "refs/heads/main", "refs/nostr/"+pull)
	world.Git(t, mine, "update-ref", "-d", "refs/nostr/"+pull)
	world.Git(t, root, "clone", "-q", "--bare", mine, filepath.Join(root, npub, "nobodys.git"))
	tables, err := filepath.Glob(filepath.Join(p.Dir, "data", "relay", "index-up", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no files of an index: %v", err)
	}
	must(t, os.WriteFile(tables[0], []byte("broken"), 0o600))
	status, out := checked(t, p)
	for _, want := range []string{
		"index: index-up: its files are damaged", "refs/heads/main (--repair: they are set)", "refs/nostr/" + pull + " does not name the commit",
		"no announcement names this repository",
	} {
		if status != 1 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, and not found: %s", status, want)
		}
	}
	if status, _ := checked(t, p, "--repair"); status != 0 {
		t.Errorf("the repair ends with %d", status)
	}
	if status, out := checked(t, p, "--json"); status != 0 || !strings.Contains(out, `"findings": []`) {
		t.Errorf("after the repair it is not clean")
	}
	world.Git(t, filepath.Join(root, "_orphans", npub, "nobodys.git"), "fsck", "--strict")
	p.Restart()
	world.Git(t, t.TempDir(), "clone", "-q", p.URL+"/"+npub+"/with%20space.git")
}

func set(ids []string) map[string]bool {
	all := map[string]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return all
}

// reverse turns the lines of a file round.
func reverse(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Reverse(lines)
	must(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
}
