// Command reference writes the reference of the settings: reference <docs/configuration.md>
// <.env.example>.
package main

import (
	"log"
	"os"

	"tendril.dev/lib/config"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: reference <configuration.md> <.env.example>")
	}
	for path, text := range map[string]string{os.Args[1]: config.Markdown(), os.Args[2]: config.DotEnv()} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
