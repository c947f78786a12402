"""Nouns, as plain tables; `lexicon.py` reads them.

Columns, two spaces or more apart: lemma, gender, genitive (`s`, `es`, `-` none, `weak` for the n-declension), plural (`-` none),
English (synonyms by `|`, the likelier first; irregular plural after `:`), and what the noun is (classes that verbs ask for).
`+in` derives the feminine (Lehrerin); `@kind` says how the noun is used as a place (`PLACE_KINDS`).
A word that stands in several rows is ambiguous: `grammar.py` uses it only where its neighbours leave one sense.
"""

from __future__ import annotations

PEOPLE = """
Lehrer       m  s     Lehrer       teacher               person relation job +in
Arzt         m  es    Ärzte        doctor|physician      person relation job
Ärztin       f  -     Ärztinnen    doctor|physician      person relation job
Nachbar      m  weak  Nachbarn     neighbour             person relation +in
Schüler      m  s     Schüler      pupil|student         person +in
Freund       m  es    Freunde      friend                person relation +in
Verkäufer    m  s     Verkäufer    salesperson|shop_assistant  person job +in
Bäcker       m  s     Bäcker       baker                 person job +in
Gärtner      m  s     Gärtner      gardener              person job +in
Ingenieur    m  s     Ingenieure   engineer              person job +in
Student      m  weak  Studenten    student               person +in
Polizist     m  weak  Polizisten   police_officer        person job +in
Journalist   m  weak  Journalisten  journalist|reporter  person job +in
Künstler     m  s     Künstler     artist                person job +in
Kollege      m  weak  Kollegen     colleague|co-worker   person relation
Kollegin     f  -     Kolleginnen  colleague|co-worker   person relation
Chef         m  s     Chefs        boss                  person relation +in
Gast         m  es    Gäste        guest|visitor         person relation
Kunde        m  weak  Kunden       customer|client       person
Kundin       f  -     Kundinnen    customer|client       person
Junge        m  weak  Jungen       boy                   person young
Mann         m  es    Männer       man:men               person
Frau         f  -     Frauen       woman:women           person
Kind         n  es    Kinder       child:children|kid    person young plural
Bruder       m  s     Brüder       brother               person family
Schwester    f  -     Schwestern   sister                person family
Vater        m  s     Väter        father                person family one
Mutter       f  -     Mütter       mother                person family one
Tochter      f  -     Töchter      daughter              person family
Sohn         m  es    Söhne        son                   person family
Onkel        m  s     Onkel        uncle                 person family one
Tante        f  -     Tanten       aunt                  person family one
Großmutter   f  -     Großmütter   grandmother           person family one
Richter      m  s     Richter      judge                 person job +in
Musiker      m  s     Musiker      musician              person job +in
Koch         m  es    Köche        cook|chef             person job
Köchin       f  -     Köchinnen    cook|chef             person job
Bauer        m  weak  Bauern       farmer                person job
Tourist      m  weak  Touristen    tourist               person +in
Mechaniker   m  s     Mechaniker   mechanic              person job +in
Leiter       m  s     Leiter       manager|director      person
Läufer       m  s     Läufer       runner                person
"""

ANIMALS = """
Hund         m  es    Hunde        dog                   animal pet
Katze        f  -     Katzen       cat                   animal pet
Pferd        n  es    Pferde       horse                 animal farm
Vogel        m  s     Vögel        bird                  animal pet
Kuh          f  -     Kühe         cow                   animal farm
Schaf        n  es    Schafe       sheep:sheep           animal farm
Maus         f  -     Mäuse        mouse:mice            animal prey
Ente         f  -     Enten        duck                  animal farm
Ziege        f  -     Ziegen       goat                  animal farm
Affe         m  weak  Affen        monkey                animal
Bär          m  weak  Bären        bear                  animal
Schlange     f  -     Schlangen    snake                 animal
Hahn         m  es    Hähne        rooster|cockerel      animal farm
Strauß       m  es    Strauße      ostrich               animal
Fliege       f  -     Fliegen      fly                   insect prey
Biene        f  -     Bienen       bee                   insect prey
"""

FOOD = """
Apfel        m  s     Äpfel        apple                 food fruit
Birne        f  -     Birnen       pear                  food fruit
Banane       f  -     Bananen      banana                food fruit
Kirsche      f  -     Kirschen     cherry                food fruit
Kartoffel    f  -     Kartoffeln   potato                food vegetable
Tomate       f  -     Tomaten      tomato                food vegetable
Zwiebel      f  -     Zwiebeln     onion                 food vegetable
Linse        f  -     Linsen       lentil                food vegetable plural
Pilz         m  es    Pilze        mushroom              food vegetable
Brötchen     n  s     Brötchen     roll|bread_roll       food baked
Kuchen       m  s     Kuchen       cake                  food baked
Keks         m  es    Kekse        biscuit|cookie        food baked
Suppe        f  -     Suppen       soup                  food dish
Salat        m  es    Salate       salad                 food
Gericht      n  es    Gerichte     dish|meal             food dish
Ei           n  s     Eier         egg                   food dish
Wurst        f  -     Würste       sausage               food dish
Fisch        m  es    Fische       fish:fish             food dish
Käse         m  s     -            cheese                food mass
Kaffee       m  s     -            coffee                drink mass
Tee          m  s     -            tea                   drink mass
Milch        f  -     -            milk                  drink mass
Saft         m  es    -            juice                 drink mass
Wein         m  es    -            wine                  drink mass
"""

CLOTHES = """
Mantel       m  s     Mäntel       coat                  clothes
Hemd         n  es    Hemden       shirt                 clothes
Kleid        n  es    Kleider      dress                 clothes
Hut          m  es    Hüte         hat                   clothes
Jacke        f  -     Jacken       jacket                clothes
Rock         m  es    Röcke        skirt                 clothes
Pullover     m  s     Pullover     sweater|jumper        clothes
Schal        m  s     Schals       scarf:scarves         clothes
Anzug        m  es    Anzüge       suit                  clothes
Fliege       f  -     Fliegen      bow_tie               clothes
"""

VEHICLES = """
Auto         n  s     Autos        car                   vehicle car
Wagen        m  s     Wagen        car|vehicle           vehicle car
Bus          m  es    Busse        bus                   vehicle public
Zug          m  es    Züge         train                 vehicle public
Lastwagen    m  s     Lastwagen    lorry|truck           vehicle car
Fahrrad      n  es    Fahrräder    bicycle|bike          vehicle bike
Motorrad     n  es    Motorräder   motorbike|motorcycle  vehicle bike
Boot         n  es    Boote        boat                  vehicle
Flugzeug     n  es    Flugzeuge    plane|aeroplane       transport plane
Straßenbahn  f  -     Straßenbahnen  tram                transport public
"""

THINGS = """
Computer     m  s     Computer     computer              device switch
Telefon      n  s     Telefone     telephone|phone       device
Fernseher    m  s     Fernseher    television|TV_set     device switch
Uhr          f  -     Uhren        clock                 device
Lampe        f  -     Lampen       lamp                  device switch
Radio        n  s     Radios       radio                 device switch
Kamera       f  -     Kameras      camera                device
Drucker      m  s     Drucker      printer               device switch
Maschine     f  -     Maschinen    machine               device switch
Motor        m  s     Motoren      engine|motor          device switch
Kühlschrank  m  es    Kühlschränke  fridge|refrigerator  device openable
Birne        f  -     Birnen       bulb|light_bulb       spare
Feder        f  -     Federn       spring                spare
Hahn         m  es    Hähne        tap                   fitting
Schloss      n  es    Schlösser    lock                  fitting
Linse        f  -     Linsen       lens                  spare
Mutter       f  -     Muttern      nut                   screw
Schraube     f  -     Schrauben    screw                 screw
Tisch        m  es    Tische       table                 furniture surface
Stuhl        m  es    Stühle       chair                 furniture
Schrank      m  es    Schränke     cupboard|cabinet      furniture openable
Bett         n  es    Betten       bed                   furniture surface
Sessel       m  s     Sessel       armchair              furniture
Regal        n  s     Regale       shelf:shelves         furniture surface
Spiegel      m  s     Spiegel      mirror                furniture
Teppich      m  s     Teppiche     carpet                cloth surface
Läufer       m  s     Läufer       rug                   cloth
Decke        f  -     Decken       blanket               cloth
Decke        f  -     Decken       ceiling               paintable one
Wand         f  -     Wände        wall                  paintable
Zaun         m  es    Zäune        fence                 paintable
Bank         f  -     Bänke        bench                 paintable seat
Tür          f  -     Türen        door                  openable paintable entry
Fenster      n  s     Fenster      window                openable entry
Tor          n  es    Tore         gate                  openable entry
Tor          n  es    Tore         goal                  goal
Kiste        f  -     Kisten       box|crate             openable load container
Koffer       m  s     Koffer       suitcase              openable load container
Paket        n  s     Pakete       parcel|package        openable load mail
Flasche      f  -     Flaschen     bottle                openable small container
Korb         m  es    Körbe        basket                small load container
Schlüssel    m  s     Schlüssel    key                   small
Messer       n  s     Messer       knife:knives          small blade
Löffel       m  s     Löffel       spoon                 small
Teller       m  s     Teller       plate                 small
Tasse        f  -     Tassen       cup                   small container
Ball         m  es    Bälle        ball                  small
Puppe        f  -     Puppen       doll                  small
Schirm       m  es    Schirme      umbrella              small
Geschenk     n  es    Geschenke    present|gift          small openable
Ring         m  es    Ringe        ring                  small
Strauß       m  es    Sträuße      bouquet               flowers
Leiter       f  -     Leitern      ladder                load
Stein        m  es    Steine       stone|rock            load
Blume        f  -     Blumen       flower                flowers plant
Baum         m  es    Bäume        tree                  plant tree
Kiefer       f  -     Kiefern      pine|pine_tree        plant tree
Blatt        n  es    Blätter      leaf:leaves           litter
Feder        f  -     Federn       feather               litter
Klavier      n  s     Klaviere     piano                 instrument
Geige        f  -     Geigen       violin                instrument
Gitarre      f  -     Gitarren     guitar                instrument
Flöte        f  -     Flöten       flute                 instrument
Flügel       m  s     Flügel       grand_piano           instrument
Flügel       m  s     Flügel       wing                  limb
Bein         n  es    Beine        leg                   limb
Absatz       m  es    Absätze      heel                  heel
Schuh        m  es    Schuhe       shoe                  shoe clothes plural
Schlange     f  -     Schlangen    queue|line            queue
"""

TEXTS = """
Buch         n  es    Bücher       book                  text sold
Zeitung      f  -     Zeitungen    newspaper|paper       text sold
Roman        m  s     Romane       novel                 text sold work
Gedicht      n  es    Gedichte     poem                  text work
Bericht      m  es    Berichte     report                text document work
Vertrag      m  es    Verträge     contract|agreement    text document
Rechnung     f  -     Rechnungen   bill|invoice          text document
Artikel      m  s     Artikel      article               text document work
Brief        m  es    Briefe       letter                text document mail work letter
Formular     n  s     Formulare    form                  text document formal
Liste        f  -     Listen       list                  text document work
Absatz       m  es    Absätze      paragraph             text passage
Blatt        n  es    Blätter      sheet|page            document
Karte        f  -     Karten       postcard|card         mail work
Karte        f  -     Karten       map                   chart
Foto         n  s     Fotos        photo|picture         image photo
Bild         n  es    Bilder       picture|painting      image
Film         m  es    Filme        film|movie            show
"""

ABSTRACT = """
Konzert      n  es    Konzerte     concert               event show
Sitzung      f  -     Sitzungen    meeting               event
Prüfung      f  -     Prüfungen    exam|test             event hard
Fest         n  es    Feste        party|celebration     event
Reise        f  -     Reisen       trip|journey          event
Hochzeit     f  -     Hochzeiten   wedding               event success
Spiel        n  es    Spiele       game|match            event show
Ausflug      m  es    Ausflüge     excursion|outing      event
Kurs         m  es    Kurse        course|class          event
Problem      n  s     Probleme     problem               topic hard
Frage        f  -     Fragen       question              topic hard query
Idee         f  -     Ideen        idea                  topic
Lösung       f  -     Lösungen     solution              topic success
Fehler       m  s     Fehler       mistake|error         topic
Vorschlag    m  es    Vorschläge   suggestion|proposal   topic offer
Geschichte   f  -     Geschichten  story|tale            topic work tale
Aufgabe      f  -     Aufgaben     task|exercise         hard
Termin       m  s     Termine      appointment           event
Angebot      n  es    Angebote     offer                 topic offer
Einladung    f  -     Einladungen  invitation            mail topic letter offer
Rede         f  -     Reden        speech                speech
Lied         n  es    Lieder       song                  music
Musik        f  -     -            music                 sound mass
Ton          m  es    Töne         sound|tone            sound
Ton          m  s     -            clay                  clay mass
Lärm         m  s     -            noise                 sound mass
Arbeit       f  -     -            work                  labour mass
Hilfe        f  -     -            help|assistance       aid mass
Rat          m  es    -            advice                aid mass
Geld         n  es    -            money                 aid mass
Geburtstag   m  s     Geburtstage  birthday              success
"""

PLACES = """
Haus         n  es    Häuser       house                 building sold home @in
Schule       f  -     Schulen      school                building @at
Bahnhof      m  es    Bahnhöfe     station|railway_station  building @an
Kirche       f  -     Kirchen      church                building @in
Museum       n  s     Museen       museum                building @at
Krankenhaus  n  es    Krankenhäuser  hospital            building @at
Hotel        n  s     Hotels       hotel                 building @at
Restaurant   n  s     Restaurants  restaurant            building @at
Theater      n  s     Theater      theatre               building @at
Kino         n  s     Kinos        cinema                building @at
Bibliothek   f  -     Bibliotheken  library              building @at
Fabrik       f  -     Fabriken     factory               building @in
Bäckerei     f  -     Bäckereien   bakery                building @in
Rathaus      n  es    Rathäuser    town_hall             building @in
Schloss      n  es    Schlösser    castle|palace         building @in
Turm         m  es    Türme        tower                 building @in
Gericht      n  es    Gerichte     court|courthouse      building
Bank         f  -     Banken       bank                  building firm
Flughafen    m  s     Flughäfen    airport               building @an
Laden        m  s     Läden        shop|store            building @in
Brücke       f  -     Brücken      bridge                building street @on
Küche        f  -     Küchen       kitchen               room @in
Keller       m  s     Keller       cellar|basement       room @in
Büro         n  s     Büros        office                room @in
Zimmer       n  s     Zimmer       room                  room home @in
Flur         m  s     Flure        hallway|corridor      room @in
Bad          n  es    Bäder        bathroom              room @in
Garten       m  s     Gärten       garden                outside @in
Wohnung      f  -     Wohnungen    flat|apartment        room sold home @in
Werkstatt    f  -     Werkstätten  workshop              room @in
Balkon       m  s     Balkone      balcony               @on
Park         m  s     Parks        park                  outside @in
Stadt        f  -     Städte       city|town             town @in
Dorf         n  es    Dörfer       village               town @in
Wald         m  es    Wälder       forest|wood           outside @in
Strand       m  es    Strände      beach                 outside @an
See          m  s     Seen         lake                  outside @an
Fluss        m  es    Flüsse       river                 outside street @an
Markt        m  es    Märkte       market                @mkt
Platz        m  es    Plätze       square                @on
Straße       f  -     Straßen      street|road           @on street
Wiese        f  -     Wiesen       meadow|field          outside @on
Kasse        f  -     Kassen       till|checkout         counter
Schalter     m  s     Schalter     counter|desk          counter
Insel        f  -     Inseln       island                town @on
"""

TABLES = (PEOPLE, ANIMALS, FOOD, CLOTHES, VEHICLES, THINGS, TEXTS, ABSTRACT, PLACES)

# German preposition for being there; preposition and case for going there; English for both (synonyms by `|`).
PLACE_KINDS = {
    "@in": ("in", "in", "acc", "in", "into|to"),
    "@at": ("in", "in", "acc", "at|in", "to"),
    "@an": ("an", "zu", "dat", "at", "to"),
    "@on": ("auf", "auf", "acc", "on", "onto|to"),
    "@mkt": ("auf", "auf", "acc", "at", "to"),
}

# Compounds by rule: any modifier of a group before any head of it. A modifier row gives the word, its linking element
# (`n`, `s`, `er`, `-` none, `cut` drops the final e; the feminine -e and the suffixes of `compounds.py` need no entry) and English.
COMPOUND_MODIFIERS = """
Küche         *    kitchen
Kirche        *    church
Woche         *    weekly
Bibliothek    *    library
Hochzeit      *    wedding
Versicherung  *    insurance
Garten        -    garden
Büro          -    office
Hotel         -    hotel
Keller        -    cellar
Bahnhof       s    station
Arbeit        s    work
Geburtstag    s    birthday
Kind          er   children's
Schule        cut  school
Kirsche       cut  cherry
Miete         cut  rental
Reise         -    travel
Wetter        -    weather
Kauf          -    purchase
Apfel         -    apple
Kartoffel     -    potato
Tomate        *    tomato
Zwiebel       -    onion
Käse          -    cheese
Winter        -    winter
Sommer        -    summer
Musik         -    music
Sport         -    sports
Kunst         -    art
"""

COMPOUND_GROUPS = (
    (
        "Küche Garten Büro Schule Hotel Kirche Bibliothek Keller Bahnhof",
        "Tür Fenster Tisch Schrank Lampe Uhr Schlüssel Stuhl",
    ),
    ("Apfel Kirsche", "Kuchen Saft"),
    ("Kartoffel Tomate Zwiebel Käse", "Suppe Salat"),
    ("Kauf Miete Versicherung Arbeit", "Vertrag"),
    ("Reise Schule Wetter Woche", "Bericht"),
    ("Kind Winter Sommer Arbeit", "Schuh Jacke Mantel Kleid"),
    ("Geburtstag Hochzeit", "Geschenk Kuchen Fest"),
    ("Musik Sport Kunst", "Lehrer Kurs"),
)
