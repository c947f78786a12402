"""Adjectives, adverbials, names and link words, as plain tables; `lexicon.py` reads them."""

from __future__ import annotations

# German stem (before an ending; the bare form after `:` where it differs), English, the classes it describes, and `pred` or
# `attr` where it stands only after the copula or only before a noun. A stem in several rows is resolved by its noun.
ADJECTIVES = """
alt          old  person,animal,building,vehicle,furniture,device,clothes,text,instrument,town,chart,home
jung         young                 person,animal
neu          new                   building,vehicle,device,furniture,clothes,text,instrument,home,fitting,show,job
groß         big|large             building,animal,vehicle,furniture,town,home,tree,load,fruit,flowers,paintable,hard
groß         tall                  person
klein        small|little          building,animal,vehicle,furniture,town,home,device,load,small,fruit,flowers
schön        beautiful|lovely      building,flowers,town,clothes,home,show,image,music,seat,instrument
schwer       heavy                 load,furniture,device,limb
schwer       difficult|hard        hard,labour
leicht       light                 container,clothes
leicht       easy                  hard,exam,query
schnell      fast|quick            vehicle,farm
langsam      slow                  vehicle,device
teur:teuer   expensive|costly      clothes,vehicle,device,furniture,instrument,small,home,food,drink
billig       cheap|inexpensive     clothes,vehicle,device,furniture,small,food
gut          good                  text,show,topic,food,drink,job,instrument
freundlich   friendly|kind         person
nett         nice|pleasant         person
klug         clever|smart          person,pet
berühmt      famous|well-known     building,job,text,show,image
fleißig      hard-working|diligent  person
faul         lazy|idle  person,pet
faul         rotten                fruit,vegetable
reich        rich|wealthy          person
arm          poor                  person
glücklich    happy|cheerful  person
traurig      sad|unhappy  person,tale,music
müde         tired|weary  person,animal
hungrig      hungry                person,animal
krank        ill|sick              person pred
nervös       nervous|anxious       person pred
zufrieden    satisfied|content     person pred
lang         long                  text,event,speech,queue
kurz         short|brief           text,event,speech
rot          red                   clothes,vehicle,flowers,fruit,paintable,cloth,small
blau         blue                  clothes,vehicle,flowers,cloth,paintable,small
grün         green                 clothes,vehicle,fruit,paintable,cloth
schwarz      black                 clothes,vehicle,animal,instrument,cloth,shoe
weiß         white                 clothes,vehicle,animal,flowers,paintable,shoe
warm         warm                  clothes,dish,drink,room,cloth
kalt         cold                  dish,drink,room
frisch       fresh                 fruit,vegetable,baked,flowers,drink
süß          sweet                 fruit,baked,drink
süß          cute|sweet            pet
reif         ripe                  fruit,vegetable
sauber       clean                 clothes,room,vehicle,cloth
schmutzig    dirty|filthy  clothes,room,vehicle,cloth,shoe,entry
leer         empty                 room,building,container,public
kaputt       broken|damaged  device,bike,spare,fitting,entry,heel,instrument
wichtig      important|significant  text,event,topic,document,query
interessant  interesting|fascinating  text,show,topic,event,building,town
langweilig   boring|dull           text,show,event,speech
spannend     exciting|thrilling    text,show,tale,work
laut         loud|noisy            device,animal
laut         loud                  sound,music
schwierig    difficult|hard        hard,exam,query
"""

# German, English (synonyms by `|`), frame (past, present, habit, future, any). `*` marks what needs no article work.
TIMES = """
gestern                   yesterday                                       past
vorgestern                the day before yesterday|two days ago           past
gestern Abend             last night|yesterday evening                    past
letzte Woche              last week                                       past
letzten Monat             last month                                      past
letztes Jahr              last year                                       past
im letzten Sommer         last summer                                     past
vor kurzem                recently|a short time ago                       past
damals                    at that time|back then                          past
heute Morgen              this morning                                    past
jetzt                     now|at the moment                               now
gerade                    right now|at the moment                         now
heute                     today                                           future
morgen                    tomorrow                                        future
übermorgen                the day after tomorrow|in two days              future
bald                      soon                                            future
nächste Woche             next week                                       future
nächsten Monat            next month                                      future
nächstes Jahr             next year                                       future
heute Abend               tonight|this evening                            future
jeden Tag                 every day                                       habit
jeden Abend               every evening                                   habit
jede Woche                every week                                      habit
im Winter                 in winter|in the winter                         habit
am Wochenende             at the weekend|at weekends                      habit
"""

# Adverbs of frequency and attitude: they stand before the English main verb. The last column says which frames they go with
# and where English puts them: before the main verb (mid) or in front.
ADVERBS = """
oft              often|frequently          habit,past,mid
immer            always                    habit,mid
manchmal         sometimes|occasionally    habit,past,mid
meistens         usually|mostly            habit,mid
selten           rarely|seldom             habit,past,mid
endlich          finally|eventually           past,mid
plötzlich        suddenly                  past,mid
leider           unfortunately|sadly       past,now,future,front
wahrscheinlich   probably                  past,future,mid
vielleicht       perhaps|maybe             past,future,front
natürlich        of course|naturally       past,future,habit,front
wirklich         really                    past,habit,mid
"""

MANNERS = """
vorsichtig       carefully|cautiously      care
sorgfältig       carefully|with care       care
schnell          quickly|fast              care,move
langsam          slowly                    care,move
leise            quietly|softly            speak
laut             loudly                    speak
freundlich       in a friendly way|kindly  speak
allein           alone|by {self}          person
heimlich         secretly|in secret        person
gemeinsam        together                  group
"""

WEEKDAYS = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"
WEEKDAYS_ENGLISH = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember"
MONTHS_ENGLISH = "January February March April May June July August September October November December"

# Name, gender.
NAMES = "Anna f; Maria f; Julia f; Laura f; Sophie f; Peter m; Thomas m; Paul m; Martin m; Felix m"
CITIES = "Berlin Berlin; Hamburg Hamburg; München Munich; Köln Cologne; Wien Vienna; Zürich Zurich; Rom Rome; Paris Paris"
